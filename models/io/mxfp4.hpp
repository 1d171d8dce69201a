// models/io/mxfp4.hpp — matrices of four bits with a scale for each 32 values (OCP Microscaling,
// MXFP4), widened to fp32.
//
// A value is E2M1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) times 2^(scale - 127). A byte
// holds two values, the first in its lower half. gpt-oss packs along a matrix's input: `blocks` is
// uint8 [matrices, out, in / 32, 16], and `scales` uint8 [matrices, out, in / 32], for a parameter
// that is [matrices, in, out].
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

constexpr std::int64_t kMxfp4Group = 32;  // values of a scale

struct Mxfp4Matrices {
  std::span<const std::byte> blocks;
  std::span<const std::byte> scales;
  std::int64_t in = 0;  // a multiple of kMxfp4Group
  std::int64_t out = 0;
};

/// Widens elements [begin, end) of [matrices, in, out], row-major. Touches only the groups that
/// hold them. Any thread.
void unpack_mxfp4(const Mxfp4Matrices& packed, std::int64_t begin, std::int64_t end, float* out);

}  // namespace tandem
