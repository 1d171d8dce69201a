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

/// Where a unit's parameters lie in its flat block: adjacent, in the order of the UnitSpec, padding
/// behind the last; and behind every expert's run up to a boundary of blocks.
struct ParameterLayout {
  std::vector<std::int64_t> offsets;  // first element of each parameter
  UnitLayout block;                   // the whole block and how ranks share it
  UnitLayout gathered;  // the block of a gather: one slice of the experts, if they are spread
  // Elements of a slice without its padding: the next one would begin there.
  std::int64_t part_elements = 0;

  static ParameterLayout of(const UnitSpec& unit, const Sharding& sharding);
  /// Where an element would be if slices lay together without padding: the same for every
  /// expert-parallel size and number of ranks.
  [[nodiscard]] std::int64_t position_of(std::int64_t element) const noexcept;
};

}  // namespace tandem
