// engine/types/boundary_share.hpp — which boundaries between segments lie elsewhere between forward
// and backward.
//
// Boundary b is the input of segment b. The first ones in forward order leave, which backward needs
// last. The last two stay whatever the share is: backward begins with them, so a copy of theirs
// would be on its way back before it had freed anything. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tandem {

/// Memory through which boundaries pass to and from NVMe, each of the largest one: one is written,
/// one is filled, one is free; in backward two of them are boundaries.
inline constexpr std::size_t kBoundaryStages = 3;

/// How many boundaries of a model with that many segments can leave: 1 to this one.
[[nodiscard]] inline std::size_t movable_boundaries(std::size_t segments) noexcept {
  return segments > 3 ? segments - 3 : 0;
}

/// How many of them leave at a share of 0 to 1; of any share above 0 one at least.
[[nodiscard]] inline std::size_t leaving_boundaries(double share, std::size_t segments) noexcept {
  const auto movable = static_cast<double>(movable_boundaries(segments));
  constexpr double kRounding = 1e-6;
  return static_cast<std::size_t>(std::ceil(std::clamp(share, 0.0, 1.0) * movable - kRounding));
}

/// The share at which that many leave.
[[nodiscard]] inline double boundary_share(std::size_t leaving, std::size_t segments) noexcept {
  return leaving == 0
             ? 0
             : static_cast<double>(leaving) / static_cast<double>(movable_boundaries(segments));
}

}  // namespace tandem
