// bench/overlap/policies.hpp — two older schedules on the same parts: lane, simulated links, and
// real Adam on a pool.
//
// serial: forward, backward, all gradients to the host, all of Adam, all weights back.
// backward_only: a layer's gradient goes to the host and into Adam as soon as it exists, its
// weights go back at once, and the step ends when all have come (no clipping: there is no verdict
// that anything would wait for). Layers take turns in a few sets of buffers, larger together than
// the caches; a set is used by one layer at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/memory/arena.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/event.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/task.hpp"

namespace tandem::bench {

struct StepShape {
  std::size_t layers = 36;
  std::size_t weights_of_layer = std::size_t{4} << 20;
  int optimizer_threads = 1;
  double link_bytes_per_s = 25e9;  // each way

  [[nodiscard]] double link_s() const noexcept {
    return 2.0 * static_cast<double>(layers * weights_of_layer) / link_bytes_per_s;
  }
};

class Policies {
 public:
  explicit Policies(const StepShape& shape);

  /// Seconds of the whole model's Adam with nothing beside it.
  double adam_s();
  /// Seconds of one step.
  double serial_s(double forward_s, double backward_s);
  double backward_only_s(double forward_s, double backward_s);

 private:
  static constexpr std::size_t kSets = 8;
  struct Set {
    HostBuffer master, first, second, gradient, weight;
    DeviceBuffer slot;
    Event free{true};
  };

  static Task<> update(Policies* self, std::size_t layer);
  static Task<> land_and_update(Policies* self, std::size_t layer);
  static Task<> all_adam(Policies* self);
  static Task<> compute(Policies* self, double seconds);
  static Task<> serial(Policies* self, double forward_s, double backward_s);
  static Task<> backward_only(Policies* self, double forward_s, double backward_s);
  [[nodiscard]] Set& set_of(std::size_t layer) { return *sets_[layer % kSets]; }
  [[nodiscard]] std::size_t bytes() const noexcept { return 2 * shape_.weights_of_layer; }

  StepShape shape_;
  UpdateStep step_;
  EventLoop loop_;
  ComputeLane lane_;
  CpuPool pool_;
  SimDevice device_;
  DeviceStream to_host_;
  DeviceStream to_device_;
  std::vector<std::unique_ptr<Set>> sets_;
};

}  // namespace tandem::bench
