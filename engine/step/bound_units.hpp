// engine/step/bound_units.hpp — the tensors of a visit's units, laid over the slots that the visit
// holds.
//
// Compute lane: made where the work of a visit begins, destroyed where it ends.
// Invariant: outside of that no tensor of a unit has memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/layout/step_plan.hpp"
#include "engine/rank/unit.hpp"

namespace tandem {

class BoundUnits {
 public:
  /// `slots`: one for each of `uses`. All three outlive it.
  BoundUnits(std::span<const std::unique_ptr<Unit>> units, std::span<const UnitUse> uses,
             std::span<std::byte* const> slots)
      : units_(units), uses_(uses) {
    for (std::size_t i = 0; i < uses.size(); ++i) {
      units[uses[i].unit]->bind_values(slots[i]);
    }
  }
  ~BoundUnits() {
    for (const UnitUse& use : uses_) {
      units_[use.unit]->unbind_values();
    }
  }
  BoundUnits(const BoundUnits&) = delete;
  BoundUnits& operator=(const BoundUnits&) = delete;

  /// Before a segment's backward. `slot_of_unit` [unit].
  void bind_gradients(std::span<std::byte* const> slot_of_unit) {
    for (const UnitUse& use : uses_) {
      if (use.gradient_pool != kNoPool) {
        units_[use.unit]->bind_gradients(slot_of_unit[use.unit], use.first_gradient);
      }
    }
  }
  /// After it: completes the gradients that no later visit adds to, and unbinds all. `padding` as
  /// of Unit::complete_gradients().
  void complete_gradients(bool padding) {
    for (const UnitUse& use : uses_) {
      if (use.last_gradient) {
        units_[use.unit]->complete_gradients(padding);
      } else if (use.gradient_pool != kNoPool) {
        units_[use.unit]->unbind_gradients();
      }
    }
  }

 private:
  std::span<const std::unique_ptr<Unit>> units_;
  std::span<const UnitUse> uses_;
};

}  // namespace tandem
