// actors/optimizer/orthogonalize.hpp — moves a matrix towards the nearest one with orthonormal rows
// or columns, in place: Muon's direction.
//
//   X = G / (|G| + 1e-7)                     [G transposed, if it has more rows than columns]
//   five times:  A = X X^T;  B = b A + c A A;  X = a X + B X
//                with a, b, c = 3.4445, -4.775, 2.0315
//   G = X * sqrt(max(1, rows / columns))
//
// This is the quintic Newton-Schulz iteration of Jordan 2024 with DeepSpeed's scale, in fp32.
// DeepSpeed's "gram" iterates the same polynomials on A; in exact arithmetic both give the same
// matrix.
// Invariant: the bits depend on the matrix and on the processor, never on the pool's threads.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/cpu_pool.hpp"
#include "runtime/task.hpp"

namespace tandem {

struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 0;

  [[nodiscard]] std::size_t elements() const noexcept { return rows * columns; }
  /// Returns the number of floats that orthogonalize() needs beside the matrix.
  [[nodiscard]] std::size_t scratch_floats() const noexcept;
  /// Returns the number of multiplications of orthogonalize(), by which work is divided.
  [[nodiscard]] double cost() const noexcept;
};

/// Overwrites `matrix` (row-major) as described above; `pool` computes. `matrix`, `scratch`
/// (shape.scratch_floats() floats) and `pool` are lent until the task ends. A matrix of zeros stays
/// zero.
Task<> orthogonalize(CpuPool* pool, float* matrix, MatrixShape shape, std::span<float> scratch);

}  // namespace tandem
