// actors/kernels/reduce.hpp — accumulates gradients in fp32, with their sum of squares and check
// for finite values; casts.
//
// The sum of squares is taken per block of kNormTile elements at fixed flat positions (block b is
// the elements [b * kNormTile, (b + 1) * kNormTile)), in double: 16 lanes, element i goes to lane
// i mod 16 in ascending order, the lanes are added as a fixed tree. The blocks' sums go into an
// ExactSum.
// Invariant: same bits for every SIMD target, chunking and thread count. A square of an fp32 value
// is exact in double and the sum of a block cannot overflow, so a block's sum is finite exactly
// when all of its elements are.
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

// All functions: any thread, elements [begin, end) of whole arrays; disjoint ranges may run at the
// same time.

/// accumulator = gradient, or accumulator += gradient (one rounding per element).
void accumulate(float* accumulator, const void* gradient, DType gradient_type, std::size_t begin,
                std::size_t end, AccumulateMode mode);

/// As accumulate, and adds the norm of the resulting accumulator's range to `norm`. `begin` is a
/// multiple of kNormTile; `end` too, or the array's end (the missing elements of its block count
/// as zero).
void accumulate_with_norm(float* accumulator, const void* gradient, DType gradient_type,
                          std::size_t begin, std::size_t end, AccumulateMode mode,
                          GradientNorm& norm);

/// Adds the norm of values[begin, end) to `norm`; same bits as accumulate_with_norm of the same
/// values.
void add_norm(const void* values, DType type, std::size_t begin, std::size_t end,
              GradientNorm& norm);

/// Copies with conversion: fp32 -> bf16 | fp16 rounds to nearest even, overflows to infinity, keeps
/// denormals and NaN; bf16 | fp16 -> fp32 is exact. The types are equal or one of them is fp32. Not
/// overlapping.
void cast(const void* from, DType from_type, void* to, DType to_type, std::size_t begin,
          std::size_t end);

/// to[0, count) = from[0, count) as fp32, for data that is not read soon: as cast, with
/// non-temporal stores, which do not read the lines that they write. `from` need not be aligned.
/// Not overlapping.
void widen_past_caches(const void* from, DType from_type, float* to, std::size_t count);

}  // namespace tandem
