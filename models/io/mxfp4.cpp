#include "models/io/mxfp4.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kGroupBytes = kMxfp4Group / 2;
constexpr int kScaleBias = 127;
constexpr std::array<float, 8> kMagnitudes = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};

using Values = std::array<float, 16>;  // values of the sixteen codes under one scale

const Values& values_of(std::byte scale) {
  static const std::array<Values, 256> kTable = [] {
    std::array<Values, 256> table{};
    for (int s = 0; s < 256; ++s) {
      for (std::size_t code = 0; code < 16; ++code) {
        const float value = std::ldexp(kMagnitudes[code % 8], s - kScaleBias);
        table[static_cast<std::size_t>(s)][code] = code < 8 ? value : -value;
      }
    }
    return table;
  }();
  return kTable[static_cast<std::size_t>(scale)];
}

/// Writes those elements of the rows [row, row + 32) of one matrix that lie in its [begin, end);
/// `out` is element `begin`.
void unpack_rows(const Mxfp4Matrices& packed, std::int64_t matrix, std::int64_t row,
                 std::int64_t begin, std::int64_t end, float* out) {
  const std::int64_t groups = packed.in / kMxfp4Group;
  const bool whole = begin <= row * packed.out && (row + kMxfp4Group) * packed.out <= end;
  for (std::int64_t column = 0; column < packed.out; ++column) {
    const std::int64_t group = (matrix * packed.out + column) * groups + row / kMxfp4Group;
    const Values& values = values_of(packed.scales[static_cast<std::size_t>(group)]);
    const std::byte* codes = packed.blocks.data() + group * kGroupBytes;
    for (std::int64_t i = 0; i < kMxfp4Group; ++i) {
      const auto both = std::to_integer<unsigned>(codes[i / 2]);
      const std::int64_t at = (row + i) * packed.out + column;
      if (whole || (begin <= at && at < end)) {
        out[at - begin] = values[i % 2 == 0 ? both & 0xFU : both >> 4];
      }
    }
  }
}

}  // namespace

void unpack_mxfp4(const Mxfp4Matrices& packed, std::int64_t begin, std::int64_t end, float* out) {
  TANDEM_CHECK(
      packed.in % kMxfp4Group == 0 && packed.blocks.size() == packed.scales.size() * kGroupBytes,
      "a scale for each group of values");
  const std::int64_t matrix_size = packed.in * packed.out;
  while (begin < end) {
    const std::int64_t matrix = begin / matrix_size;
    const std::int64_t from = begin - matrix * matrix_size;
    const std::int64_t to = std::min(matrix_size, end - matrix * matrix_size);
    for (std::int64_t row = from / packed.out / kMxfp4Group * kMxfp4Group; row * packed.out < to;
         row += kMxfp4Group) {
      unpack_rows(packed, matrix, row, from, to, out);
    }
    out += to - from;
    begin += to - from;
  }
}

}  // namespace tandem
