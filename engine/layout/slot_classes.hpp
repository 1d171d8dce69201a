// engine/layout/slot_classes.hpp — divides units into pools; the units of a pool share slots.
//
// Slots of one pool have the same size, so a unit much larger than the rest (an embedding, a head)
// would enlarge every slot: it gets a pool of its own, with one slot. So does a unit that several
// segments use (tied weights), because its gradient stays open from its first visit in backward to
// its last and would block the pool's order meanwhile. All other units share pool 0. Weights that
// stay replicated need no slot, nor do gradients of frozen units; gradients may have one for each
// unit (Sharding).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/layout/sharding.hpp"
#include "engine/types/model.hpp"

namespace tandem {

inline constexpr std::size_t kNoPool = SIZE_MAX;

struct SlotPools {
  std::vector<std::size_t> pool_of;        // [unit], kNoPool: needs no slot
  std::vector<std::size_t> slot_elements;  // [pool], padded elements of the largest block in it
  std::size_t min_shared_slots = 1;  // the most units of pool 0 that one segment holds at a time

  [[nodiscard]] std::size_t pools() const noexcept { return slot_elements.size(); }
  /// Units of pool 0.
  [[nodiscard]] std::size_t shared_units() const;
};

struct SlotClasses {
  SlotPools weights;
  SlotPools gradients;

  static SlotClasses of(const Model& model, const Sharding& sharding);
};

}  // namespace tandem
