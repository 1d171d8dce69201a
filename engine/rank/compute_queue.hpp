// engine/rank/compute_queue.hpp — runs a rank's work on the compute lane, or queues it there for a
// GPU.
//
// If the CPU or a simulated device computes, work is done when run() ends. On a GPU it is then only
// queued, in the order of the calls, and the next operation on the same memory waits for it on the
// device (in_use()). So work must own what it uses.
// Invariant: all work of a rank runs on the lane's thread.
// Thread rule: the loop's thread, except functions marked for the compute lane.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/device/accelerator.hpp"
#include "engine/layout/step_plan.hpp"
#include "engine/metrics/module_profile.hpp"
#include "engine/types/model.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/scope.hpp"

namespace tandem {

/// Seconds of work in each segment's visits, by phase.
class VisitTimes {
 public:
  explicit VisitTimes(std::size_t segments) : seconds_(2 * segments) {}
  void reset() { std::ranges::fill(seconds_, 0.0); }
  [[nodiscard]] double& of(std::size_t segment, Phase phase) {
    return seconds_[2 * segment + (phase == Phase::kBackward ? 1 : 0)];
  }
  [[nodiscard]] double of(std::size_t segment, Phase phase) const {
    return seconds_[2 * segment + (phase == Phase::kBackward ? 1 : 0)];
  }
  [[nodiscard]] double all(Phase phase) const;

 private:
  std::vector<double> seconds_;
};

class ComputeQueue {
 public:
  /// `scope`, `model`, `accelerator` (null: the CPU computes) and `driver` (null: the lane has a
  /// thread) outlive this object. `recomputes`: backward runs the forward again.
  ComputeQueue(Scope& scope, const Model& model, Accelerator* accelerator, bool recomputes,
               LaneDriver* driver = nullptr);

  /// Prepares the lane; call it before all other work. Binds the lane's thread to `cores` (empty:
  /// does not bind it), tells the lane that its work uses `threads` threads, calls `prepare_thread`
  /// there, and on a GPU sets the thread's device.
  Task<> prepare(std::vector<int> cores, int threads,
                 std::function<void(int threads)> prepare_thread);

  [[nodiscard]] ComputeLane& lane() noexcept { return lane_; }
  /// Whether work is queued on a GPU and may end after run().
  [[nodiscard]] bool on_gpu() const noexcept {
    return accelerator_ != nullptr && !accelerator_->is_simulated();
  }

  /// Runs `work` on the lane; on a GPU only queues it. `what` names it in traces and messages.
  /// Throws Error(kRefused) if the device has too little memory.
  Task<> run(Name what, std::function<void()> work);
  /// On a GPU: marks `blocks` as in use by all work queued so far, so that the next operation on
  /// them waits for it on the device, and returns an event behind that work. Elsewhere returns
  /// nullopt, because the work is done. When the work has ended, its time on the device is added to
  /// `seconds` (may be null).
  std::optional<DeviceEvent> in_use(std::span<std::byte* const> blocks,
                                    const std::shared_ptr<double>& seconds = nullptr);

  /// Returns the memory into which losses of a step are read back; a GPU can write to it.
  [[nodiscard]] std::span<float> losses() noexcept { return losses_; }

  /// Compute lane: returns a guard around a segment's visit, which then takes at least as long as
  /// the simulated device would need.
  [[nodiscard]] SegmentTime time_of(std::size_t segment, Phase phase, const BatchExtents& batch,
                                    TimePoint inputs_there);
  /// Returns when a GPU finished its last work, as far as the loop knows.
  [[nodiscard]] TimePoint idle_since() const noexcept { return device_time_.free_since; }
  /// Returns the seconds for which the device, or without one the lane, has worked since the start.
  [[nodiscard]] double busy_s() const noexcept;

 private:
  static Task<> account(ComputeQueue* self, DeviceEvent event, TimePoint queued,
                        std::shared_ptr<double> seconds);

  Scope& scope_;
  const Model& model_;
  Accelerator* accelerator_;
  bool recomputes_;
  ComputeLane lane_;
  DeviceTime device_time_;
  std::vector<float> host_losses_;  // unless a GPU writes them
  std::span<float> losses_;
};

}  // namespace tandem
