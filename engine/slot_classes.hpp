// engine/slot_classes.hpp — which units share slots with which.
//
// Slots of one pool are equally large, so a unit much larger than the rest (an embedding, a head) would blow up every
// slot: it gets a pool of its own, with one slot. So does a unit that several segments use (tied weights), because its
// gradient stays open from its first visit in backward to its last and would block the pool's order meanwhile.
// All other units share pool 0. The same classes serve gather slots and gradient slots.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/model.hpp"

namespace tandem {

struct SlotClasses {
  std::vector<std::size_t> pool_of;        // [unit]
  std::vector<std::size_t> slot_elements;  // [pool], padded elements of the largest unit in it
  std::size_t min_shared_slots = 1;  // the most units of pool 0 that one segment holds at a time

  static SlotClasses of(const Model& model, int world_size);
  [[nodiscard]] std::size_t pools() const noexcept { return slot_elements.size(); }
};

}  // namespace tandem
