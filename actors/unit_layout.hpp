// actors/unit_layout.hpp — divides a unit's flat block among the ranks.
//
// The block is padded to world * kUnitAlignment elements; rank r owns the r-th of `world` equal
// slices, its shard. A slice is a whole number of norm tiles. So the tiles lie at the same flat
// positions for every world size, and chunk boundaries never cut a tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/kernels/reduce.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

inline constexpr std::size_t kUnitAlignment = kNormTile;  // elements

struct UnitLayout {
  std::size_t elements = 0;         // without padding
  std::size_t padded_elements = 0;  // of the whole block; what a slot must hold
  std::size_t shard_elements = 0;   // of one rank's slice
  std::uint32_t world = 1;

  static constexpr UnitLayout make(std::size_t elements, std::uint32_t world) {
    TANDEM_CHECK(world >= 1, "there is at least one rank");
    const std::size_t step = world * kUnitAlignment;
    const std::size_t padded = (elements + step - 1) / step * step;
    return {elements, padded, padded / world, world};
  }

  [[nodiscard]] constexpr std::size_t shard_begin(std::uint32_t rank) const noexcept {
    return rank * shard_elements;
  }
};

}  // namespace tandem
