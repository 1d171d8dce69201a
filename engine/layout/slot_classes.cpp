#include "engine/layout/slot_classes.hpp"

#include <algorithm>

namespace tandem {

namespace {

std::vector<int> segments_using(const Model& model) {
  std::vector<int> count(model.units.size());
  for (const SegmentSpec& segment : model.segments) {
    for (const std::size_t unit : units_of(segment)) {
      ++count[unit];
    }
  }
  return count;
}

/// The median of the padded sizes of the units that need slots.
std::size_t typical_size(const std::vector<std::size_t>& sizes, const std::vector<bool>& needs) {
  std::vector<std::size_t> sorted;
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    if (needs[unit]) {
      sorted.push_back(sizes[unit]);
    }
  }
  std::ranges::sort(sorted);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

SlotPools share_slots(const Model& model, const std::vector<std::size_t>& sizes,
                      const std::vector<bool>& needs) {
  const std::vector<int> uses = segments_using(model);
  const std::size_t typical = typical_size(sizes, needs);
  SlotPools pools;
  pools.slot_elements.push_back(0);
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    if (!needs[unit]) {
      pools.pool_of.push_back(kNoPool);
    } else if (sizes[unit] > 2 * typical || uses[unit] > 1) {
      pools.pool_of.push_back(pools.slot_elements.size());
      pools.slot_elements.push_back(sizes[unit]);
    } else {
      pools.pool_of.push_back(0);
      pools.slot_elements[0] = std::max(pools.slot_elements[0], sizes[unit]);
    }
  }
  for (const SegmentSpec& segment : model.segments) {
    const auto units = units_of(segment);
    const auto shared = static_cast<std::size_t>(
        std::ranges::count_if(units, [&](std::size_t unit) { return pools.pool_of[unit] == 0; }));
    pools.min_shared_slots = std::max(pools.min_shared_slots, shared);
  }
  return pools;
}

SlotPools one_slot_each(const std::vector<std::size_t>& sizes, const std::vector<bool>& needs) {
  SlotPools pools;
  pools.slot_elements.push_back(0);  // pool 0, shared by none
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    pools.pool_of.push_back(needs[unit] ? pools.slot_elements.size() : kNoPool);
    if (needs[unit]) {
      pools.slot_elements.push_back(sizes[unit]);
    }
  }
  return pools;
}

}  // namespace

std::size_t SlotPools::shared_units() const {
  return static_cast<std::size_t>(std::ranges::count(pool_of, 0U));
}

SlotClasses SlotClasses::of(const Model& model, const Sharding& sharding) {
  std::vector<std::size_t> blocks;
  std::vector<std::size_t> sizes;
  std::vector<bool> gathered;
  std::vector<bool> learning;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    blocks.push_back(sharding.gathered_layout_of(model.units[unit]).padded_elements);
    sizes.push_back(sharding.layout_of(model.units[unit]).padded_elements);
    gathered.push_back(!sharding.weights_replicated[unit]);
    learning.push_back(!model.units[unit].frozen());
  }
  return {.weights = share_slots(model, blocks, gathered),
          .gradients = sharding.gradient_slot_of_own ? one_slot_each(sizes, learning)
                                                     : share_slots(model, sizes, learning)};
}

}  // namespace tandem
