// engine/layout/parameter_layout.hpp — where the parameters of a unit lie in its flat block.
//
// Any thread; constant once made.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/unit_layout.hpp"
#include "engine/layout/sharding.hpp"
#include "engine/types/model.hpp"

namespace tandem {

/// Positions of a unit's parameters in its flat block: adjacent, in the order of the UnitSpec, with
/// padding after the last one. With experts, each expert's run is padded to a multiple of 512
/// elements (norm tiles).
struct ParameterLayout {
  std::vector<std::int64_t> offsets;  // first element of each parameter
  UnitLayout block;                   // the whole block and how ranks share it
  UnitLayout gathered;  // the block of a gather: one slice of the experts, if they are spread
  // Elements of a slice of the experts without its padding.
  std::int64_t part_elements = 0;

  static ParameterLayout of(const UnitSpec& unit, const Sharding& sharding);
  /// Returns an element's position if slices were adjacent without padding: the same for every
  /// expert-parallel size and number of ranks.
  [[nodiscard]] std::int64_t position_of(std::int64_t element) const noexcept;
};

}  // namespace tandem
