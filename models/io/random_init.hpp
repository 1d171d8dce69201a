// models/io/random_init.hpp — fresh weights that are the same on every machine, thread count and
// partition.
//
// Element i of a tensor depends on (seed, tensor name, i) alone: Philox4x32-10 (Salmon et al., SC
// 2011) makes the bits, and the inverse of the normal distribution (Wichura, AS 241) makes the
// value of them, in arithmetic that IEEE 754 fixes to the last bit.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tandem {

/// Ten rounds of Philox 4x32 on a 128-bit counter with a 64-bit key.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::uint64_t key);

/// Quantile of the standard normal distribution, 0 < p < 1, to about 1e-15 relative.
double normal_quantile(double p);

/// Fills `out` with elements [begin, end) of the tensor `name`, normal with mean 0 and this
/// deviation. Any thread.
void fill_normal(std::string_view name, std::uint64_t seed, double deviation, std::int64_t begin,
                 std::int64_t end, float* out);

/// The same, uniform between -bound and bound.
void fill_uniform(std::string_view name, std::uint64_t seed, double bound, std::int64_t begin,
                  std::int64_t end, float* out);

}  // namespace tandem
