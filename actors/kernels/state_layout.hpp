// actors/kernels/state_layout.hpp — the encodings of master weights and moments in memory, and
// their sizes.
//
//   layout  master                            moments                 bytes (bf16 weight, Adam)
//   fp32    fp32                              fp32                    4 + 8
//   split   weight + 16-bit remainder: exact  fp32                    2 + 8
//   bf16    weight + remainder                bf16, rounded randomly  2 + 4
//   int8    weight + remainder                8 bits, blocks of 128   2 + 2.02
//
// split: the bf16 weight, rounded to nearest even as usual, is the master's upper half, and the
// remainder is the master's lower 16 bits. The remainder, read as a signed number and added to the
// weight's bits, undoes the rounding. The exception is the remainder 0x8000: it belongs to a tie,
// whose weight was rounded either down or up. One more bit is needed to tell which, because an even
// weight is nearest to 65537 masters. That bit is the sign of the moment that is never negative
// (Adam's exp_avg_sq, Adagrad's sum); it is set if the weight was rounded down. So split always
// gives fp32's bits, except that a NaN keeps only the payload bits in the weight.
// bf16, int8: these layouts are inexact anyway, so a master that is a tie and was rounded down is
// changed by one unit in its last place instead (the remainder becomes 0x7fff). In every layout,
// fp32 weights are the master.
//
// Moments are rounded stochastically: upwards with a probability equal to the fraction that is cut
// off, so that the mean is right. With rounding to nearest, an average with beta2 = 0.999 would
// never decay, because its steps are smaller than half a unit. The random bits depend on (seed,
// step, array, position in the model), not on chunks, threads, vector width and ranks. exp_avg_sq >
// 0 never becomes 0: a value below the least number is rounded up to it, so the update may shrink
// but not explode.
// int8: each scale group has one exponent, that of its greatest value, and 8-bit floats below it:
// exp_avg has 1 + 4 + 3 bits (sign, exponent, mantissa), exp_avg_sq 5 + 3. A linear code would be
// three times as exact for values of similar size, but values a hundred times smaller than the
// greatest would change by noise alone; floats have steps of 9 % everywhere. The scale is a power
// of two, so the grid of values stays the same from step to step: a value that changes by a
// thousandth of itself gets a thousandth of the rounding noise. Exponent 255 means that the group
// has a value that is not finite; then all of the group reads as NaN.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class StateLayout : std::uint8_t { kFp32, kSplit, kBf16, kInt8 };

/// Number of elements in a scale group, which share an exponent in kInt8. Group b of a shard begins
/// at element b * kScaleGroup.
inline constexpr std::size_t kScaleGroup = 128;

template <>
inline constexpr auto kEnumNames<StateLayout> =
    std::array{EnumName{StateLayout::kFp32, "fp32"}, EnumName{StateLayout::kSplit, "split"},
               EnumName{StateLayout::kBf16, "bf16"}, EnumName{StateLayout::kInt8, "int8"}};

}  // namespace tandem
