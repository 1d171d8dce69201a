// engine/tensors/bound_units.hpp — binds the tensors of a visit's units to the slots that the visit
// was granted.
//
// Compute lane: lives as long as the work of a visit.
// Invariant: at other times no tensor of a unit has memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/rank/micro_batch.hpp"
#include "engine/tensors/unit.hpp"

namespace tandem {

class BoundUnits {
 public:
  /// The arguments outlive it.
  BoundUnits(std::span<const std::unique_ptr<Unit>> units, const VisitMemory& memory)
      : units_(units), memory_(memory) {
    for (std::size_t i = 0; i < memory.uses.size(); ++i) {
      units[memory.uses[i].unit]->bind_values(memory.weights[i]);
    }
  }
  ~BoundUnits() {
    for (const UnitUse& use : memory_.uses) {
      units_[use.unit]->unbind_values();
    }
  }
  BoundUnits(const BoundUnits&) = delete;
  BoundUnits& operator=(const BoundUnits&) = delete;

  /// Before a segment's backward.
  void bind_gradients() {
    for (const UnitUse& use : memory_.uses) {
      if (use.gradient_pool != kNoPool) {
        units_[use.unit]->bind_gradients(memory_.gradients[use.unit], use.first_gradient);
      }
    }
  }
  /// Call it after the backward: completes the gradients that no later visit adds to, and unbinds
  /// all. `padding` as in Unit::complete_gradients().
  void complete_gradients(bool padding) {
    for (const UnitUse& use : memory_.uses) {
      if (use.last_gradient) {
        units_[use.unit]->complete_gradients(padding);
      } else if (use.gradient_pool != kNoPool) {
        units_[use.unit]->unbind_gradients();
      }
    }
  }

 private:
  std::span<const std::unique_ptr<Unit>> units_;
  VisitMemory memory_;
};

}  // namespace tandem
