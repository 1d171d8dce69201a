// actors/collectives/norm_words.hpp — a gradient norm as it travels between ranks: canonical
// digits, no padding.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "actors/kernels/reduce.hpp"

namespace tandem {

struct NormWords {
  std::array<std::uint64_t, ExactSum::kWords> words{};
  std::int64_t first_bad_element = -1;

  [[nodiscard]] static NormWords of(GradientNorm norm) noexcept {
    NormWords made{.first_bad_element = norm.first_bad_element};
    std::ranges::copy(norm.sum_of_squares.words(), made.words.begin());
    return made;
  }
};

/// Exact, so the order is nobody's concern.
[[nodiscard]] inline GradientNorm merge_norms(std::span<const NormWords> norms) noexcept {
  GradientNorm all;
  for (const NormWords& norm : norms) {
    all.merge({ExactSum::from_words(norm.words), norm.first_bad_element});
  }
  return all;
}

}  // namespace tandem
