// engine/device/accelerator.hpp — a rank's device: its memory for slots and whole blocks, its
// links, and its compute.
//
// A rank with a device differs from a rank on the CPU only in memory: slots and blocks are device
// memory, and gathers and reductions go through a StagedBackend or NCCL. A simulated device's
// memory is the host's, so ATen runs on it as usual; a segment then takes at least the time that
// the described device would take (SegmentTime). On a GPU ATen's work is queued on one stream, and
// no host thread waits for it: the next operation on its operands waits for an event on the device
// (in_use()).
// Invariant: memory that it allocated lives until it is destroyed, after the actors that use the
// memory.
// Thread rule: the loop's thread, except SegmentTime and functions marked for the compute lane.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "actors/collectives/staged_backend.hpp"
#include "engine/device/gpu.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/types/sim_spec.hpp"
#include "runtime/device/cuda_device.hpp"
#include "runtime/device/pinned_slab.hpp"
#include "runtime/device/sim_device.hpp"

namespace tandem {

/// A simulated device's own time.
struct DeviceTime {
  TimePoint free_since;                  // the end of its last segment; compute lane
  std::atomic<std::int64_t> busy_ns{0};  // time of the segments that have ended; any thread
};

/// Compute lane: a guard around a segment's work. Its destructor sleeps until the described device
/// would have finished, so the CPU is free meanwhile, as beside a real device. As on a real device
/// with a queue, a segment's time starts when the last segment has ended and the inputs are ready,
/// not when the host's thread wakes up.
class SegmentTime {
 public:
  SegmentTime() noexcept = default;               // of no device
  explicit SegmentTime(double seconds) noexcept;  // from now on
  SegmentTime(double seconds, TimePoint inputs_there, DeviceTime& device) noexcept;
  ~SegmentTime();
  SegmentTime(const SegmentTime&) = delete;
  SegmentTime& operator=(const SegmentTime&) = delete;

 private:
  TimePoint began_{};  // on the host
  TimePoint start_{};  // on the device
  Duration least_{0};
  DeviceTime* device_ = nullptr;
};

class Accelerator {
 public:
  /// Makes a simulated device that runs in real time.
  Accelerator(EventLoop& loop, int rank, const SimSpec& spec);
  /// Takes a simulated device that runs in the simulator's time.
  explicit Accelerator(std::unique_ptr<SimDevice> device);
  Accelerator(EventLoop& loop, std::shared_ptr<Gpu> gpu);
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  /// Makes the back end for operands on this device. Call it once; destroy the back end before the
  /// accelerator.
  std::unique_ptr<CollectiveBackend> connect(Communicator& communicator, EventLoop& loop,
                                             CpuPool& pool);

  /// The same over a given back end for host memory; not for a GPU.
  std::unique_ptr<CollectiveBackend> stage(std::unique_ptr<CollectiveBackend> host);

  /// Makes the back end of a group of ranks, over their back end for host memory.
  std::unique_ptr<CollectiveBackend> connect_group(std::unique_ptr<CollectiveBackend> group);

  /// Prepares reductions of gradients that stay on a GPU. Call it before the first one.
  void reduce_there();

  /// Allocates device memory with undefined content. Throws Error(kRefused), which names the
  /// purpose and the change that helps. Call connect() first.
  Placed<std::byte> allocate(std::size_t bytes, std::string_view purpose);

  [[nodiscard]] Device& device() noexcept { return *device_; }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_bytes_ + most_held_bytes_; }
  /// Returns the bytes of the transfer buffers in host memory.
  [[nodiscard]] std::size_t staging_bytes() const noexcept;

  /// Returns an event after all copies of weights that are queued on the device; see
  /// CollectiveBackend.
  [[nodiscard]] std::optional<DeviceEvent> gathers_queued() { return backend_->gathers_queued(); }

  // ---- a simulated device ----
  /// Counts activations that stay on the simulated device from visit to visit: `more_bytes` more
  /// (negative: less). Throws Error(kRefused) if the described device has no room for them.
  void hold(std::int64_t more_bytes);
  [[nodiscard]] bool is_simulated() const noexcept { return sim_ != nullptr; }
  /// Whether SegmentTime makes segments take the device's time.
  [[nodiscard]] bool takes_real_time() const noexcept { return takes_real_time_; }
  /// Returns the seconds that the device needs for `flops` operations.
  [[nodiscard]] double seconds_of(double flops) const noexcept {
    return spec_.latency_s + flops / spec_.compute_flops_per_s;
  }
  /// Returns the seconds for which the link to the device was busy; 0 for a GPU, where it is not
  /// known.
  [[nodiscard]] double to_device_busy_s() const;
  [[nodiscard]] double to_host_busy_s() const;

  // ---- a GPU ----
  /// Returns where ATen computes; null on a simulated device, where that is host memory.
  [[nodiscard]] ComputeDevice* compute() const noexcept {
    return gpu_ != nullptr ? gpu_->compute.get() : nullptr;
  }
  /// Null on a simulated device.
  [[nodiscard]] const std::shared_ptr<Gpu>& gpu() const noexcept { return gpu_; }
  /// Returns the kernels of updates on the GPU; null on a simulated device, whose memory is the
  /// host's.
  [[nodiscard]] const UpdateKernels* update_kernels() const noexcept {
    return gpu_ != nullptr ? gpu_->updates : nullptr;
  }
  /// Returns an event after all work that the lane has queued. Only on a GPU.
  [[nodiscard]] DeviceEvent queued();
  /// Marks these blocks as in use until `event`: collectives on them wait for it on the device.
  void in_use(std::span<std::byte* const> blocks, const DeviceEvent& event);
  /// Allocates zeroed, pinned host memory for copies that ATen makes; it lives as long as this
  /// object. Call it only at the start.
  [[nodiscard]] std::byte* pinned(std::size_t bytes) { return slab_->allocate(bytes); }

 private:
  SimSpec spec_;
  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<Device> device_;
  SimDevice* sim_ = nullptr;  // device_, or null
  bool takes_real_time_ = false;
  CudaDevice* cuda_ = nullptr;
  std::optional<DeviceStream> compute_stream_;
  std::optional<PinnedSlab> slab_;
  std::size_t used_bytes_ = 0;            // of allocate()
  std::size_t held_bytes_ = 0;            // of hold()
  std::size_t most_held_bytes_ = 0;       // so far
  std::vector<DeviceBuffer> buffers_;     // of allocate()
  CollectiveBackend* backend_ = nullptr;  // the rank owns it
  StagedBackend* staged_ = nullptr;       // the same, or null
  StagedBackend* group_ = nullptr;        // of connect_group(); the rank owns it
};

}  // namespace tandem
