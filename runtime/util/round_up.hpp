// runtime/util/round_up.hpp — rounds a size up to a multiple. Pure.
#pragma once

#include <cstddef>

namespace tandem {

/// The least multiple of `step` that is not below `value`; `step` is not 0.
[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t step) noexcept {
  return (value + step - 1) / step * step;
}

}  // namespace tandem
