// actors/kernels/reduce.hpp — accumulates gradients in fp32, computes their sum of squares, finds
// values that are not finite, and converts types.
//
// The sum of squares is computed in double for each tile of kNormTile elements at fixed flat
// positions: tile b has the elements [b * kNormTile, (b + 1) * kNormTile). Element i is added to
// lane i mod 32 in ascending order, and the 32 lanes are added as a fixed tree. The tiles' sums are
// added to an ExactSum.
// Invariant: the bits are the same for every SIMD target, chunking and thread count. The square of
// an fp32 value is exact in double and the sum of a tile cannot overflow, so a tile's sum is finite
// exactly if all of its elements are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/exact_sum.hpp"

namespace tandem {

inline constexpr std::size_t kNormTile = 512;

/// The norm and the first bad element of a gradient; norms of chunks, units and ranks merge in any
/// order.
struct GradientNorm {
  ExactSum sum_of_squares;
  std::int64_t first_bad_element = -1;  // least index of a NaN or infinity, -1: none

  void merge(const GradientNorm& other) noexcept {
    sum_of_squares.merge(other.sum_of_squares);
    if (other.first_bad_element >= 0 &&
        (first_bad_element < 0 || other.first_bad_element < first_bad_element)) {
      first_bad_element = other.first_bad_element;
    }
  }
};

enum class AccumulateMode : std::uint8_t { kOverwrite, kAdd };

// All functions may be called by any thread. They handle the elements [begin, end) of whole arrays;
// disjoint ranges may run at the same time.

/// accumulator = gradient, or accumulator += gradient (one rounding per element).
void accumulate(float* accumulator, const void* gradient, DType gradient_type, std::size_t begin,
                std::size_t end, AccumulateMode mode);

/// As accumulate(), and adds the norm of the resulting range of the accumulator to `norm`. `begin`
/// is a multiple of kNormTile, and so is `end`, unless it is the array's end (the missing elements
/// of its tile count as zero).
void accumulate_with_norm(float* accumulator, const void* gradient, DType gradient_type,
                          std::size_t begin, std::size_t end, AccumulateMode mode,
                          GradientNorm& norm);

/// Adds the norm of values[begin, end) to `norm`, with the bits of accumulate_with_norm() for the
/// same values.
void add_norm(const void* values, DType type, std::size_t begin, std::size_t end,
              GradientNorm& norm);

/// Copies with conversion: fp32 -> bf16 | fp16 rounds to nearest even, overflows to infinity, keeps
/// denormals and NaN; bf16 | fp16 -> fp32 is exact. The types are equal, or one of them is fp32.
/// The arrays do not overlap.
void cast(const void* from, DType from_type, void* to, DType to_type, std::size_t begin,
          std::size_t end);

/// Copies to[0, count) = from[0, count) as fp32, for data that is not read soon: as cast(), but
/// with non-temporal stores, which do not read the lines that they write. `from` need not be
/// aligned. The arrays do not overlap.
void widen_past_caches(const void* from, DType from_type, float* to, std::size_t count);

}  // namespace tandem
