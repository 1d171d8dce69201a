// actors/optimizer/device_updates.hpp — updates on an accelerator, of state that lies in its memory
// or comes through it.
//
// Those of a unit's arrays that are device memory are updated where they lie. Host memory passes
// through a stage: the elements that the pass reads are copied to the device, the kernel works
// there, and the elements that it wrote are copied back. So one mechanism serves both placements:
// with all of a unit's state on the device no byte crosses the link, with master and moments on the
// host a gradient that lies on the device never leaves it.
//   resident   kernel
//   streamed   copy in | kernel | copy out, slices overlapping
// The ring has a stage for each slice under way, so that one comes in while another is updated and
// a third goes out.
// The kernel is that of a GPU, which has the host's bits (update_kernels.hpp). On a simulated
// device, whose memory is the host's, it is the host's own run_update_pass(), and takes the time
// that its bytes take in the device's memory.
// Buffers: the host's arrays of a slice are the device's from run() to its end; copies of other
// slices touch other elements.
// Failure: a DeviceError ends the slice, and the device does nothing any more. Nothing is allocated
// after the start, but for what the device's queues take.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "actors/gpu/update_kernels.hpp"
#include "actors/optimizer/stage_ring.hpp"
#include "actors/optimizer/update_runner.hpp"
#include "runtime/device/device.hpp"

namespace tandem {

class DeviceUpdates final : public UpdateRunner {
 public:
  static constexpr std::size_t kSlices = 3;  // coming in, being updated, going out

  struct Options {
    Device* device = nullptr;                // outlives the runner
    const UpdateKernels* kernels = nullptr;  // of a GPU; null: a simulated device
    std::function<bool(const void*)> is_on_device;
    std::size_t slice_chunks = 1;
    // device memory of kSlices * stage_bytes, outliving the runner; null: all is resident
    std::byte* stages = nullptr;
    std::size_t stage_bytes = 0;
  };

  explicit DeviceUpdates(Options options);

  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return options_.slice_chunks; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return kSlices; }
  Task<> run(UpdateSlice slice) override;

  /// Bytes moved between host and device so far.
  [[nodiscard]] std::size_t bytes_in() const noexcept { return bytes_in_; }
  [[nodiscard]] std::size_t bytes_out() const noexcept { return bytes_out_; }

 private:
  struct StagedArray {
    std::byte* home = nullptr;  // on the host, of the slice's first element
    std::byte* stage = nullptr;
    ArrayUse use;
  };
  struct Stage {
    std::byte* memory = nullptr;
    UpdatedUnit view;  // the slice's elements, each array where the kernel finds it
    std::vector<StagedArray> arrays;
  };

  /// Makes the view, and says what the kernel touches, in bytes.
  [[nodiscard]] std::size_t prepare(Stage& stage, const UpdateSlice& slice) const;
  void copy(const Stage& stage, bool in);

  Options options_;
  DeviceStream in_;
  DeviceStream kernels_;
  DeviceStream out_;
  StageRing<Stage> stages_;
  std::size_t bytes_in_ = 0;
  std::size_t bytes_out_ = 0;
};

}  // namespace tandem
