// engine/layout/step_plan.hpp — the order in which a pass over the model visits its segments, and
// the units that each visit gathers.
//
// Everything whose order must be the same on all ranks (gathers, slot grants, reductions) takes its
// number from here, never from the order of arrival. Every use of a unit in slots has a ticket of
// its slot pool; tickets grow along the plan and continue from one pass to the next, so that a pool
// knows how far away a unit's next use is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/layout/slot_classes.hpp"
#include "engine/types/model.hpp"

namespace tandem {

enum class Phase : std::uint8_t { kForward, kBackward };

/// The communicators: all ranks, and the ranks with the same slice of the experts. Each has numbers
/// of its own for its operations.
inline constexpr std::size_t kWorld = 0;
inline constexpr std::size_t kExpertParallel = 1;
using CommunicatorOrders = std::array<std::uint64_t, 2>;  // by communicator

/// One use of one unit by one visit.
struct UnitUse {
  std::size_t unit = 0;
  std::size_t pool = kNoPool;           // of weight slots; kNoPool: its weights stay replicated
  std::size_t gradient_pool = kNoPool;  // of gradient slots; kNoPool: frozen
  std::uint64_t ticket = 0;             // of the pool, relative to the pass
  // The same unit's next ticket; after its last use in the pass: the ticket in the next pass.
  std::uint64_t next_use = 0;
  std::size_t communicator = kWorld;  // the collectives that its gathers and reductions go through
  // The gather's number among all gathers of its communicator, relative to the pass.
  std::uint64_t order = 0;
  std::uint64_t blocks = 1;     // that a reduction of its gradient adds; each has an order number
  bool first_gradient = false;  // backward: opens the unit's gradient slot in this micro-step
  bool last_gradient = false;   // backward: no later visit of this micro-step adds to it
  std::uint64_t gradient_ticket = 0;  // of the gradient pool, where first_gradient
};

/// One segment's forward or backward.
struct Visit {
  Phase phase = Phase::kForward;
  std::size_t segment = 0;
  std::size_t micro_step = 0;
  std::vector<UnitUse> uses;
};

/// The visits of one pass, in order.
struct StepPlan {
  std::vector<Visit> visits;
  std::vector<std::uint64_t> tickets;           // [pool] number of tickets that the pass uses
  std::vector<std::uint64_t> gradient_tickets;  // [gradient pool] the same
  CommunicatorOrders gathers = {};              // number of gathers

  /// Returns the plan of one optimizer step: `micro_steps` forward and backward sweeps.
  static StepPlan training(const Model& model, const SlotClasses& classes, std::size_t micro_steps);
  /// Returns the plan of one forward sweep without backward.
  static StepPlan inference(const Model& model, const SlotClasses& classes);

  /// Returns, by unit, the number of the first visit that uses it: the deadline of its update.
  [[nodiscard]] std::vector<std::uint64_t> first_visits(std::size_t unit_count) const;
};

}  // namespace tandem
