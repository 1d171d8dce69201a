// engine/step/gatherer.hpp — gathers the units of a pass in plan order, ahead of the visits that
// need them.
//
// begin() starts a pass. With run_ahead a coroutine then acquires its units one after another, in
// ticket order; only the number of slots limits how far it runs ahead, because an acquire waits
// until its pool has a slot for it. Without run_ahead each unit is acquired at the visit that needs
// it.
// Thread rule: the loop's thread.
// Invariant: acquires are issued in ticket order, and each is released exactly once, after its
// visit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "actors/parameter_shard.hpp"
#include "engine/layout/step_plan.hpp"
#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/task.hpp"

namespace tandem {

class Gatherer {
 public:
  using Shards = std::span<const std::unique_ptr<ParameterShard>>;  // [unit]

  /// `shards` and `scope` outlive the gatherer.
  Gatherer(Shards shards, std::size_t pools, Scope& scope, bool run_ahead);

  /// Starts a pass whose units must have weights of `version`. `plan` must live until its last
  /// visit was released.
  void begin(const StepPlan& plan, std::uint64_t version);

  /// Returns the gathered units of visit `v`, in the order of its uses, in memory of where the lane
  /// computes. Call it for the visits in their order. Throws the error of a failed gather.
  Task<std::vector<std::byte*>> acquired(std::size_t v);
  /// Returns when the last unit of visit `v` was gathered; call it after acquired(v).
  [[nodiscard]] TimePoint there_since(std::size_t v) const { return pass_->there_since[v]; }
  /// Releases the units of visit `v`.
  void release(std::size_t v);

  /// Returns the order number for a gather of all ranks outside of a pass; it follows the gathers
  /// of all passes begun so far.
  [[nodiscard]] std::uint64_t take_order() noexcept { return next_gather_[kWorld]++; }

 private:
  struct Pass {
    const StepPlan* plan = nullptr;
    std::uint64_t version = 0;
    std::vector<std::uint64_t> first_ticket;  // [pool]
    CommunicatorOrders first_gather = {};
    std::vector<std::vector<std::byte*>> slots;    // [visit][use]
    std::vector<std::unique_ptr<Event>> complete;  // [visit]
    std::vector<TimePoint> there_since;            // [visit]
    std::exception_ptr failure;
  };

  static Task<> run_ahead(Gatherer* self, std::shared_ptr<Pass> pass);
  Task<> acquire_visit(std::shared_ptr<Pass> pass, std::size_t v);

  Shards shards_;
  Scope& scope_;
  bool run_ahead_;
  std::vector<std::uint64_t> next_ticket_;  // [pool]
  CommunicatorOrders next_gather_ = {};
  std::shared_ptr<Pass> pass_;
};

}  // namespace tandem
