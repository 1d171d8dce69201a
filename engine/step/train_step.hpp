// engine/step/train_step.hpp — one training step of one rank, from the first gather to the last
// update issued.
//
// Read train_step.cpp top to bottom: forward() and backward() are one micro-batch, finish() is what
// the accumulated gradients become. Everything here is a coroutine on the rank's loop; what a visit
// computes is its MicroBatch's, on the compute lane. It is the one place that decides what overlaps
// with what, and it decides by awaiting earlier or later.
//
// At Overlap::kFull a unit's update begins when its gradient is reduced, under the backward of the
// units before it, as if the verdict were known to be good. finish() then asks for all updates, as
// at every setting, and the optimizer finds which of them are made, and which must be made again
// with the constants that the verdict gave.
// Invariant: no number depends on what overlaps.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/rank/micro_batch.hpp"
#include "engine/rank/rank.hpp"
#include "engine/step/directions.hpp"
#include "engine/step/gatherer.hpp"
#include "engine/step/speculation.hpp"
#include "engine/types/options.hpp"
#include "engine/types/step_result.hpp"

namespace tandem {

class TrainStep {
 public:
  /// `rank` outlives it.
  explicit TrainStep(Rank& rank);

  /// The values that finish() applies, beside the gradients.
  struct Update {
    // By parameter group (Muon: two for each, muon_group()); lr of this step in it.
    std::vector<UpdateConfig> groups;
    std::int64_t applied_step = 1;  // 1-based count of applied steps
    double gradient_clipping = 0;   // 0: off
    double loss_scale = 1;          // in the gradients; the norm and the update are without it
  };

  /// Begins the run's step `number`, of `micro_steps` micro-batches. `expected`: what finish() is
  /// likely to be given.
  void begin(std::int64_t number, std::size_t micro_steps, const Update& expected);
  /// Forward of the step's next micro-batch. `loss_gradient` of its backward: d(objective)/d(loss).
  Task<> forward(std::shared_ptr<MicroBatch> batch);
  /// The losses of the step's forwards so far. On a GPU they are read back once, here.
  Task<std::vector<float>> losses();
  Task<> backward(double loss_gradient);
  /// After the last micro-batch: the verdict, then the updates. Returns norm and verdict, the same
  /// on all ranks.
  Task<Verdict> finish(Update update);
  /// The first activation on this rank that is not finite, where the micro-batches look for it.
  struct Bad {
    std::size_t micro_step = 0;
    BadActivation activation;
  };
  [[nodiscard]] const std::optional<Bad>& bad_activation() const noexcept { return bad_; }
  /// Returns `mine` of every rank, in rank order; all have equally much, at most kExchangeBytes. A
  /// collective: all ranks ask at the same place of their step.
  Task<std::vector<std::byte>> exchange(std::vector<std::byte> mine);
  /// Waits until no update is queued or running and every shard holds the newest weights. An update
  /// ahead of a verdict that is still to come is undone.
  Task<> drain();
  /// Waits until the gradients of all backward()s so far are reduced.
  Task<> reductions_done();

  /// The fp32 master weights of a unit's whole block (no update may be running), and its gradient
  /// accumulated in this step (after its reductions). A collective where each rank keeps a slice.
  /// Valid until the next call.
  Task<std::span<const float>> whole_master(std::size_t unit);
  Task<std::span<const float>> whole_gradient(std::size_t unit);

  /// Forward only, over the newest weights; until its result is there. A collective where weights
  /// are gathered.
  Task<> infer(std::shared_ptr<MicroBatch> batch);

  /// The weights of all shards were replaced, while no update is running: what was gathered of them
  /// is void.
  Task<> weights_replaced();
  /// Units by their next update, the soonest first.
  [[nodiscard]] std::vector<std::uint32_t> update_order() const;
  [[nodiscard]] Speculation& speculation() noexcept { return speculation_; }
  [[nodiscard]] const Speculation& speculation() const noexcept { return speculation_; }

  /// Where the step's time went so far; begin() resets it.
  [[nodiscard]] const Exposure& exposure() const noexcept { return exposure_; }
  /// For how long the lane or its device has worked in visits of the step; likewise.
  [[nodiscard]] const VisitTimes& visit_times() const noexcept { return *visit_times_; }

 private:
  Task<> reduce(UnitUse use, std::size_t micro_step, std::uint64_t order);
  static Task<> reduce_in_background(TrainStep* self, UnitUse use, std::size_t micro_step,
                                     std::uint64_t order);
  /// Runs the work of a visit on the lane; its slots are free for others once it is done, on the
  /// device or here.
  Task<> run_visit(Name what, std::function<void()> work, std::vector<std::byte*> slots,
                   std::size_t segment, Phase phase);
  Task<std::vector<std::byte*>> gathered(std::size_t v);
  /// Acquires the gradient slots that visit `v` writes first, and says since when they were free.
  Task<TimePoint> gradient_slots(std::size_t v);
  /// Until visit `s` of a forward (a backward) has its boundaries where it wants them.
  Task<TimePoint> boundaries_of_forward(std::size_t s);
  Task<TimePoint> boundaries_of_backward(std::size_t s);
  void charge_boundaries(TimePoint asked);
  Task<GlobalNorm> global_norm();
  Task<std::span<const float>> whole_of(std::size_t unit, std::span<const float> slice);
  Task<> update_speculatively(std::size_t unit);
  Task<> updates_done();
  Task<> roll_back();
  [[nodiscard]] bool missed_by_force() const;
  void set_constants(std::vector<UpdateStep>& steps, const Update& update, double clip);
  /// Muon's, ahead of the verdict: the norm that is clipped.
  Task<double> muon_norm(const Update* update);
  Task<> find_lamb_directions(const Update* update, double clip);
  Task<> issue_updates(bool redo);
  /// On the loop's clock.
  [[nodiscard]] double seconds_since(TimePoint start) const;
  void charge_updates(TimePoint start, TimePoint ready, TimePoint held_back);

  Rank& rank_;
  const RankLayout& layout_;
  ComputeQueue& compute_;
  const EngineOptions& options_;
  Speculation speculation_;
  Gatherer gatherer_;
  Boundaries* boundaries_;            // null: all stay
  std::vector<Name> forward_names_;   // [segment] in traces
  std::vector<Name> backward_names_;  // likewise
  std::vector<Name> infer_names_;

  // The step in flight.
  StepPlan plan_;
  StepPlan inference_plan_;
  std::size_t micro_steps_ = 0;
  std::size_t visit_ = 0;
  std::shared_ptr<MicroBatch> micro_;       // held by all work that the lane was given for it
  std::vector<float> losses_;               // read back
  std::size_t forwards_ = 0;                // of this step
  std::optional<DeviceEvent> last_queued_;  // on a GPU: behind the last work given to it
  std::vector<std::byte*> gradient_slot_;   // [unit], null where none is open
  std::vector<ReducedGradient> reduced_;    // [unit], after the last micro-step
  std::size_t reductions_open_ = 0;
  Event no_reduction_open_;
  std::exception_ptr reduction_failure_;
  Exposure exposure_;
  std::shared_ptr<VisitTimes> visit_times_;  // what a GPU still does for a step outlives it
  Update expected_;                          // of this step
  std::size_t backwards_ = 0;                // begun in this step
  std::optional<Bad> bad_;
  bool speculative_ = false;                   // updates of this step begin ahead of its verdict
  std::vector<UpdateStep> speculative_steps_;  // [group] of these updates
  std::vector<UpdateStep> update_steps_;       // [group] of the updates issued last
  std::vector<std::uint64_t> deadlines_;       // [unit] of its update: its first visit in a forward
  std::vector<float> whole_;                   // of whole_of()

  // Plan-order counters that never restart.
  std::vector<std::uint64_t> gradient_ticket_;  // [gradient pool] first of the step in flight
  CommunicatorOrders reduction_order_ = {};
  std::uint64_t version_ = 0;
  Directions directions_;  // of joint updates
};

}  // namespace tandem
