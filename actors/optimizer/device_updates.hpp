// actors/optimizer/device_updates.hpp — updates on an accelerator: the state lies in its memory or
// is copied through it.
//
// Each array's place decides. A unit's arrays in device memory are updated in place. Arrays in host
// memory go through a transfer buffer on the device: the elements that the pass reads are copied
// in, the kernel runs, and the elements that it wrote are copied out. So one mechanism serves all
// placements. If all of a unit's state is on the device, no byte crosses the link. If master and
// moments are on the host, a gradient on the device stays there.
//   resident   kernel
//   streamed   copy in | kernel | copy out, slices overlapping
// The ring has a transfer buffer for each slice under way: while one slice is copied in, another is
// updated, and a third is copied out. A GPU's kernel has the host's bits (update_kernels.hpp). A
// simulated device, whose memory is the host's, runs the host's run_update_pass() and takes as long
// as its bytes take in the device's memory.
// Buffers: a slice's host arrays are lent to the device from run() to its end; copies of other
// slices use other elements.
// Failure: a DeviceError ends the slice and all later ones. After the start only the device's
// queues allocate.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <vector>

#include "actors/gpu/update_kernels.hpp"
#include "actors/optimizer/transfer_ring.hpp"
#include "actors/optimizer/update_runner.hpp"
#include "runtime/device/device.hpp"

namespace tandem {

class DeviceUpdates final : public UpdateRunner {
 public:
  static constexpr std::size_t kSlices = 3;  // coming in, being updated, going out

  struct Options {
    Device* device = nullptr;                // outlives the runner
    const UpdateKernels* kernels = nullptr;  // of a GPU; null: a simulated device
    std::size_t slice_chunks = 1;
    // On the device, kSlices * buffer_bytes, which outlive the runner. Null: all state is resident.
    Placed<std::byte> buffers;
    std::size_t buffer_bytes = 0;
  };

  explicit DeviceUpdates(Options options);

  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return options_.slice_chunks; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return kSlices; }
  Task<> run(UpdateSlice slice) override;

  /// Return the bytes moved to the device, and to the host, so far.
  [[nodiscard]] std::size_t bytes_in() const noexcept { return bytes_in_; }
  [[nodiscard]] std::size_t bytes_out() const noexcept { return bytes_out_; }

 private:
  struct StagedArray {
    std::byte* home = nullptr;  // the slice's first element, on the host
    std::byte* buffer = nullptr;
    ArrayUse use;
  };
  struct TransferBuffer {
    std::byte* memory = nullptr;
    UpdatedUnit view;  // the slice's elements, all arrays in device memory
    std::vector<StagedArray> arrays;
  };

  /// Sets the view, and returns the bytes that the kernel reads and writes.
  [[nodiscard]] std::size_t prepare(TransferBuffer& buffer, const UpdateSlice& slice) const;
  void copy(const TransferBuffer& buffer, bool in);

  Options options_;
  DeviceStream in_;
  DeviceStream kernels_;
  DeviceStream out_;
  TransferRing<TransferBuffer> buffers_;
  std::size_t bytes_in_ = 0;
  std::size_t bytes_out_ = 0;
};

}  // namespace tandem
