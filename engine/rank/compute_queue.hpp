// engine/rank/compute_queue.hpp — how a rank computes: the compute lane, and the device that its
// work goes to.
//
// Where the CPU or a simulated device computes, work is done when run() ends. On a GPU it is queued
// then, in the order of the calls, and the next operation on the same memory waits behind in_use(),
// on the device. So work holds what it uses by value.
// Invariant: all work of a rank runs on the lane's thread.
// Thread rule: the loop's thread, but for what is marked for the compute lane.
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

/// Seconds of work in visits of each segment.
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
  /// thread) outlive it. `recomputes`: backward computes activations anew.
  ComputeQueue(Scope& scope, const Model& model, Accelerator* accelerator, bool recomputes,
               LaneDriver* driver = nullptr);

  /// Before all else: binds the lane to `cores` (empty: to none), tells it how many `threads` its
  /// work has, calls `prepare_thread` there and gives the lane its device.
  Task<> prepare(std::vector<int> cores, int threads,
                 std::function<void(int threads)> prepare_thread);

  [[nodiscard]] ComputeLane& lane() noexcept { return lane_; }
  /// Whether work goes to a device of its own, behind the host.
  [[nodiscard]] bool on_gpu() const noexcept {
    return accelerator_ != nullptr && !accelerator_->is_simulated();
  }

  /// `what` is for messages. Throws Error(kRefused) when the device has no memory left for it.
  Task<> run(Name what, std::function<void()> work);
  /// On a GPU: these blocks are in use by what the lane was given so far; their next user waits for
  /// it on the device. Gives the event behind it. Elsewhere: nothing, the work is done.
  /// `seconds` (null: none) grows by what the device then needed for it.
  std::optional<DeviceEvent> in_use(std::span<std::byte* const> blocks,
                                    const std::shared_ptr<double>& seconds = nullptr);

  /// Where losses of a step are read back to; the device reaches it.
  [[nodiscard]] std::span<float> losses() noexcept { return losses_; }

  /// Compute lane: a guard around a visit of a segment, which then takes at least as long as the
  /// simulated device would need.
  [[nodiscard]] SegmentTime time_of(std::size_t segment, Phase phase, const BatchExtents& batch,
                                    TimePoint inputs_there);
  /// When a device had done what it was given, as far as the loop knows.
  [[nodiscard]] TimePoint idle_since() const noexcept { return device_time_.free_since; }
  /// Seconds in which the lane or its device has worked since the start.
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
