#include "engine/slot_classes.hpp"

#include <algorithm>

#include "engine/segment_runner.hpp"

namespace tandem {

SlotClasses SlotClasses::of(const Model& model, int world_size) {
  std::vector<std::size_t> sizes;
  for (const UnitSpec& unit : model.units) {
    sizes.push_back(ParameterLayout::of(unit, world_size).block.padded_elements);
  }
  std::vector<int> segments_using(sizes.size());
  for (const SegmentSpec& segment : model.segments) {
    for (const std::size_t unit : units_of(segment)) {
      ++segments_using[unit];
    }
  }
  std::vector<std::size_t> sorted = sizes;
  std::ranges::sort(sorted);
  const std::size_t typical = sorted[sorted.size() / 2];

  SlotClasses classes;
  classes.slot_elements.push_back(0);
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    if (sizes[unit] > 2 * typical || segments_using[unit] > 1) {
      classes.pool_of.push_back(classes.slot_elements.size());
      classes.slot_elements.push_back(sizes[unit]);
    } else {
      classes.pool_of.push_back(0);
      classes.slot_elements[0] = std::max(classes.slot_elements[0], sizes[unit]);
    }
  }
  for (const SegmentSpec& segment : model.segments) {
    const auto units = units_of(segment);
    const auto shared = static_cast<std::size_t>(
        std::ranges::count_if(units, [&](std::size_t unit) { return classes.pool_of[unit] == 0; }));
    classes.min_shared_slots = std::max(classes.min_shared_slots, shared);
  }
  return classes;
}

}  // namespace tandem
