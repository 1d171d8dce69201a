// engine/step/train_step.hpp — one training step of one rank, from the first gather to the last
// update issued.
//
// train_step.cpp reads from top to bottom: forward() and backward() run one micro-batch; finish()
// turns the accumulated gradients into updates. These are coroutines on the rank's loop; a visit's
// computation is done by its MicroBatch, on the compute lane. Only this class decides what
// overlaps, by awaiting earlier or later.
//
// At Overlap::kFull a unit's update begins when its gradient is reduced, during the backward of the
// units before it, as if the verdict were known to be good. finish() then requests all updates, as
// at every setting; the optimizer knows which of them are already made, and makes those again whose
// constants differ from the verdict's.
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
  /// `rank` outlives this object.
  explicit TrainStep(Rank& rank);

  /// The values that finish() applies, beside the gradients.
  struct Update {
    // [group] with the step's learning rate; Muon has two for each parameter group (muon_group()).
    std::vector<UpdateConfig> groups;
    std::int64_t applied_step = 1;  // 1-based count of applied steps
    double gradient_clipping = 0;   // 0: off
    double loss_scale = 1;          // contained in the gradients, not in the norm and the update
  };

  /// Begins the run's step `number`, of `micro_steps` micro-batches. `expected`: the argument that
  /// finish() will probably get; speculative updates use it.
  void begin(std::int64_t number, std::size_t micro_steps, const Update& expected);
  /// Runs the forward of the step's next micro-batch.
  Task<> forward(std::shared_ptr<MicroBatch> batch);
  /// Returns the losses of the step's forwards so far; on a GPU waits for those that are not read
  /// back yet.
  Task<std::vector<float>> losses();
  /// Runs the backward of the last forward(). `loss_gradient`: d(objective)/d(loss).
  Task<> backward(double loss_gradient);
  /// Call it after the last micro-batch: reaches the verdict, then issues the updates. Returns the
  /// verdict with the norm, the same on all ranks.
  Task<Verdict> finish(Update update);
  /// The first activation on this rank that is not finite, if the micro-batches look for it.
  struct Bad {
    std::size_t micro_step = 0;
    BadActivation activation;
  };
  [[nodiscard]] const std::optional<Bad>& bad_activation() const noexcept { return bad_; }
  /// Returns the bytes of all ranks, in rank order; every rank passes the same number, at most
  /// kExchangeBytes. Collective: all ranks call it at the same point of their step.
  Task<std::vector<std::byte>> exchange(std::vector<std::byte> mine);
  /// Waits until no update is queued or running and every shard holds the newest weights.
  /// Speculative updates whose verdict is still to come are rolled back.
  Task<> drain();
  /// Waits until the gradients of all backward()s so far are reduced.
  Task<> reductions_done();

  /// Return, in fp32, a unit's whole block: its master weights (no update may be running), or the
  /// gradient that this step has accumulated (call it after the reductions). Collective if each
  /// rank keeps a slice. The result is valid until the next call.
  Task<std::span<const float>> whole_master(std::size_t unit);
  Task<std::span<const float>> whole_gradient(std::size_t unit);

  /// Runs a forward without backward, with the newest weights, and waits for its result. Collective
  /// if weights are gathered.
  Task<> infer(std::shared_ptr<MicroBatch> batch);

  /// Call it when the weights of all shards were replaced, while no update is running: gathered
  /// copies of them become invalid.
  Task<> weights_replaced();
  /// Returns the units by the deadlines of their next updates, the soonest first.
  [[nodiscard]] std::vector<std::uint32_t> update_order() const;
  [[nodiscard]] Speculation& speculation() noexcept { return speculation_; }
  [[nodiscard]] const Speculation& speculation() const noexcept { return speculation_; }

  /// Returns where the step's time went so far; begin() resets it.
  [[nodiscard]] const Exposure& exposure() const noexcept { return exposure_; }
  /// Returns how long the lane or its device has worked in the step's visits so far; begin() resets
  /// it.
  [[nodiscard]] const VisitTimes& visit_times() const noexcept { return *visit_times_; }

 private:
  Task<> reduce(UnitUse use, std::size_t micro_step, std::uint64_t order);
  static Task<> reduce_in_background(TrainStep* self, UnitUse use, std::size_t micro_step,
                                     std::uint64_t order);
  /// Runs a visit's work on the lane. On a GPU the next users of the slots wait for the work on the
  /// device.
  Task<> run_visit(Name what, std::function<void()> work, std::vector<std::byte*> slots,
                   std::size_t segment, Phase phase);
  Task<std::vector<std::byte*>> gathered(std::size_t v);
  /// Acquires the gradient slots that visit `v` is the first to write. Returns when they became
  /// free, or a zero time if the step did not wait.
  Task<TimePoint> gradient_slots(std::size_t v);
  /// Wait until the boundaries lie where segment `s` needs them in forward, or in backward. Return
  /// when that was, or a zero time if the step did not wait.
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
  /// Computes Muon's directions before the verdict; returns the norm that clipping limits.
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
  Boundaries* boundaries_;            // null: none is offloaded or counted
  std::vector<Name> forward_names_;   // [segment] in traces
  std::vector<Name> backward_names_;  // likewise
  std::vector<Name> infer_names_;

  // The step in flight.
  StepPlan plan_;
  StepPlan inference_plan_;
  std::size_t micro_steps_ = 0;
  std::size_t visit_ = 0;
  std::shared_ptr<MicroBatch> micro_;       // work queued for it holds it, too
  std::vector<float> losses_;               // read back
  std::size_t forwards_ = 0;                // of this step
  std::optional<DeviceEvent> last_queued_;  // on a GPU: behind the work queued last
  std::vector<std::byte*> gradient_slot_;   // [unit], null where none is open
  std::vector<ReducedGradient> reduced_;    // [unit], after the last micro-step
  std::size_t reductions_open_ = 0;
  Event no_reduction_open_;
  std::exception_ptr reduction_failure_;
  Exposure exposure_;
  std::shared_ptr<VisitTimes> visit_times_;  // shared: a GPU's work may outlive this object
  Update expected_;                          // of this step
  std::size_t backwards_ = 0;                // begun in this step
  std::optional<Bad> bad_;
  bool speculative_ = false;                   // updates of this step begin ahead of its verdict
  std::vector<UpdateStep> speculative_steps_;  // [group] of these updates
  std::vector<UpdateStep> update_steps_;       // [group] of the updates issued last
  std::vector<std::uint64_t> deadlines_;       // [unit] of its update: its first visit in a forward
  std::vector<float> whole_;                   // the buffer of whole_of()

  // Plan-order counters that never restart.
  std::vector<std::uint64_t> gradient_ticket_;  // [gradient pool] first of the step in flight
  CommunicatorOrders reduction_order_ = {};
  std::uint64_t version_ = 0;
  Directions directions_;  // of joint updates
};

}  // namespace tandem
