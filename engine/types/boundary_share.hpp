// engine/types/boundary_share.hpp — which boundaries between segments are offloaded between forward
// and backward.
//
// Boundary b is the input of segment b. The first ones in forward order are offloaded, because
// backward needs them last. The last two stay at any share: backward begins with them, so they
// would be copied back before their memory was freed. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tandem {

/// Number of transfer buffers for boundaries to and from NVMe, each as large as the largest
/// boundary: one is written, one is filled, one is free; in backward two hold boundaries in use.
inline constexpr std::size_t kBoundaryStages = 3;

/// Returns the number of boundaries that can be offloaded, for a model with that many segments:
/// boundaries 1 to this number.
[[nodiscard]] inline std::size_t movable_boundaries(std::size_t segments) noexcept {
  return segments > 3 ? segments - 3 : 0;
}

/// Returns the number of offloaded boundaries at a share of 0 to 1; at least one for any share
/// above 0.
[[nodiscard]] inline std::size_t leaving_boundaries(double share, std::size_t segments) noexcept {
  const auto movable = static_cast<double>(movable_boundaries(segments));
  constexpr double kRounding = 1e-6;
  return static_cast<std::size_t>(std::ceil(std::clamp(share, 0.0, 1.0) * movable - kRounding));
}

/// Returns the share at which that many are offloaded.
[[nodiscard]] inline double boundary_share(std::size_t leaving, std::size_t segments) noexcept {
  return leaving == 0
             ? 0
             : static_cast<double>(leaving) / static_cast<double>(movable_boundaries(segments));
}

}  // namespace tandem
