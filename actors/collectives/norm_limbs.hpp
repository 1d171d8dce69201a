// actors/collectives/norm_limbs.hpp — a gradient norm in the form that ranks exchange: canonical
// digits, no padding.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "actors/kernels/reduce.hpp"

namespace tandem {

struct NormLimbs {
  std::array<std::uint64_t, ExactSum::kLimbs> limbs{};
  std::int64_t first_bad_element = -1;

  [[nodiscard]] static NormLimbs of(GradientNorm norm) noexcept {
    NormLimbs made{.first_bad_element = norm.first_bad_element};
    std::ranges::copy(norm.sum_of_squares.limbs(), made.limbs.begin());
    return made;
  }
};

/// Merges norms exactly, so the order does not matter.
[[nodiscard]] inline GradientNorm merge_norms(std::span<const NormLimbs> norms) noexcept {
  GradientNorm all;
  for (const NormLimbs& norm : norms) {
    all.merge({ExactSum::from_limbs(norm.limbs), norm.first_bad_element});
  }
  return all;
}

}  // namespace tandem
