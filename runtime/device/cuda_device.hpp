// runtime/device/cuda_device.hpp — a GPU as a Device: CUDA's streams, events and copies on the
// loop.
//
// The host learns by polling that a point was reached. CUDA offers four ways. A host function
// behind the work holds its stream up, may call nothing, and is not called once the device has
// failed. A thread that blocks in cudaEventSynchronize costs an interrupt and two thread switches
// per point, and cannot be woken when the device hangs. A word that the device writes needs the
// driver's API, and stays silent after a failure. cudaEventQuery takes half a microsecond, and also
// returns failures. This class polls with it: while the loop is awake, and by a timer while it
// sleeps (ticking_poller.hpp). It polls only the oldest point of each stream, so the cost is that
// of the streams in use. Streams wait for each other on the device, without the host.
// Errors are sticky (device.hpp), except for lack of memory. Events come from a pool that grows
// when it is empty, and points from the loop's free lists, so that a step allocates nothing once it
// has been made before.
// Nothing here waits for the device. Buffers are freed in stream order, on a stream that carries
// nothing else.
// Thread rule: the loop's thread, which also destroys it; coroutines that wait for a point then get
// a DeviceError.
//
//   CudaDevice gpu(loop, CudaApi::load(), {.index = 0, .name = "H200"});
//   DeviceStream copies = gpu.stream("copies", CudaDevice::Priority::kHigh);
#pragma once

#include <exception>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/cuda_api.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/ticking_poller.hpp"

namespace tandem {

class CudaDevice final : public Device, private TickingPoller {
 public:
  enum class Priority : unsigned char { kNormal, kHigh };
  struct Options {
    int index = 0;             // of the GPUs that this process sees
    std::string name = "gpu";  // for messages: "gpu 0 (NVIDIA H200)"
    std::size_t events = 64;   // made by the constructor
    int node = -1;             // the NUMA node near it; -1: unknown
  };
  /// `api` outlives it. Throws DeviceError when the device cannot be used at all.
  CudaDevice(EventLoop& loop, const CudaApi& api, Options options);
  ~CudaDevice() override;

  using Device::stream;
  [[nodiscard]] DeviceStream stream(Name name, Priority priority);
  /// Takes another library's cudaStream_t as a stream of this device. It still belongs to that
  /// library, and must outlive the device.
  [[nodiscard]] DeviceStream adopt(Name name, void* native);
  /// The cudaStream_t, for code that launches on it directly: kernels, NCCL.
  [[nodiscard]] void* native(const DeviceStream& stream) const noexcept {
    return streams_[stream.number()].native;
  }

  [[nodiscard]] const CudaApi& api() const noexcept { return api_; }
  [[nodiscard]] EventLoop& loop() const noexcept { return loop_; }
  /// Makes it the calling thread's current device, as other libraries' calls there need.
  void use() noexcept;
  /// The error that has made the device unusable; null if there is none.
  [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }
  /// Takes the `status` of another library's call on this device; an error makes the device
  /// unusable.
  void check(CudaApi::Status status, const char* what) noexcept;
  /// Events that exist, in use or not.
  [[nodiscard]] std::size_t events() const noexcept { return events_; }

  [[nodiscard]] const std::string& name() const noexcept override { return options_.name; }
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept override { return memory_bytes_; }
  /// The free memory as the driver sees it: the memory of other processes is not free.
  [[nodiscard]] std::uint64_t free_bytes() const noexcept override;

  /// Prints a line on stderr at the first refusal.
  bool pin(std::span<std::byte> memory) override;
  void unpin(std::span<std::byte> memory) noexcept override;

 protected:
  std::byte* take_memory(std::size_t bytes) override;
  void give_memory_back(std::byte* data, std::size_t bytes) noexcept override;
  std::uint32_t add_stream(Name name) override;
  void copy(std::uint32_t stream, CopyKind kind, std::byte* to, const std::byte* from,
            std::size_t bytes) override;
  /// Calls `kernel` at once, with the native stream; not at all once the device has failed.
  void launch(std::uint32_t stream, Name name, KernelCost cost, Kernel kernel) override;
  void wait(std::uint32_t stream, const DeviceEvent& event) override;
  DeviceEvent record(std::uint32_t stream) override;

 private:
  struct Point;
  struct Stream {
    Name name;
    void* native = nullptr;
    bool adopted = false;
    std::shared_ptr<Point> oldest;  // recorded, not known to be reached; linked in their order
    std::shared_ptr<Point> newest;
  };

  bool progress() noexcept override;
  bool look_at(Stream& stream) noexcept;
  std::uint32_t make_stream(Name name, bool high);
  [[nodiscard]] void* take_event();
  void throw_if(CudaApi::Status status, const std::string& what);
  void fail(CudaApi::Status status, const std::string& what) noexcept;
  void end_all(const std::exception_ptr& error) noexcept;
  [[nodiscard]] std::exception_ptr made_error(const std::string& what) const;
  [[nodiscard]] std::string words_for(CudaApi::Status status) const;

  EventLoop& loop_;
  const CudaApi& api_;
  Options options_;
  std::uint64_t memory_bytes_ = 0;
  void* memory_stream_ = nullptr;
  std::vector<Stream> streams_;
  std::vector<void*> free_events_;
  std::size_t events_ = 0;
  std::size_t waiting_ = 0;  // points in the streams' lists
  std::exception_ptr error_;
  std::set<const std::byte*> pinned_;  // by this device
  bool said_unpinned_ = false;
};

}  // namespace tandem
