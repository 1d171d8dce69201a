// actors/kernels/state_layout.hpp — how master weights and moments lie in memory, and what that
// costs.
//
//   layout  master                            moments                 bytes (bf16 weight, Adam)
//   fp32    fp32                              fp32                    4 + 8
//   split   weight + 16-bit remainder: exact  fp32                    2 + 8
//   bf16    weight + remainder                bf16, rounded randomly  2 + 4
//   int8    weight + remainder                8 bits, blocks of 128   2 + 2.02
//
// split: the bf16 weight, rounded to nearest even as usual, is the master's upper half, and the
// remainder is the master's lower 16 bits. Read as a signed number and added to the weight's bits
// it undoes the rounding, but for one case: 0x8000, a tie, is behind a weight that was rounded down
// as well as behind one that was rounded up. 2^32 masters do not fit into 2^32 pairs that way (an
// even weight is nearest to 65537 masters), so one bit more is needed: the sign of the moment that
// is never negative (Adam's exp_avg_sq, Adagrad's sum) says "rounded down". So split gives fp32's
// bits, always; NaN keeps what the weight holds of it, and 16 bits of payload are lost.
// bf16, int8: inexact anyhow, so a tie that was rounded down gives one unit in its last place away
// (to 0x7fff) instead.
// Where weights are fp32 they are the master, as in every layout.
//
// Moments are rounded at random, upwards with the probability of the part that is cut off, so that
// the mean stays right: to the nearest, an average with beta2 = 0.999 would never decay, its steps
// being smaller than half a unit. The random bits come from (seed, step, array, position in the
// model): chunks, threads, vector width and ranks change nothing. exp_avg_sq > 0 never becomes 0,
// and what is below the least number goes up to it: the update may shrink, not explode.
// int8: in each block one exponent, that of the greatest value, and 8-bit floats below it: exp_avg
// 1 + 4 + 3 bits (sign, exponent, digits), exp_avg_sq 5 + 3. A linear code would be three times as
// exact where a block's elements are alike, but what lies two powers of ten below the greatest
// would then move by noise alone; a floating one has 9 % steps everywhere. The exponent is a power
// of two so that the grid stays where it is from step to step: a value that moves by a thousandth
// of itself is then rounded by a thousandth's worth of noise. 255: the block has a value that is
// not finite, and all of it reads as NaN.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class StateLayout : std::uint8_t { kFp32, kSplit, kBf16, kInt8 };

/// Elements that share an exponent in kInt8, at fixed positions of a shard: block b begins at b *
/// kStateBlock.
inline constexpr std::size_t kStateBlock = 128;

template <>
inline constexpr auto kEnumNames<StateLayout> =
    std::array{EnumName{StateLayout::kFp32, "fp32"}, EnumName{StateLayout::kSplit, "split"},
               EnumName{StateLayout::kBf16, "bf16"}, EnumName{StateLayout::kInt8, "int8"}};

}  // namespace tandem
