// runtime/device/device.hpp — the loop's interface to an accelerator: streams of copies and
// kernels, and events to await.
//
// Operations of one stream run in their order; streams run side by side, as far as the device has
// engines (one for compute, one for copies in each direction). record() marks a point of a stream:
// other streams wait for it on the device (stream.wait), the host only when it needs the bytes
// (co_await event.wait()).
// Errors are sticky, as with CUDA: after a failed operation the device does nothing any more; every
// event recorded before or after and not yet done ends with that DeviceError.
// Thread rule: the loop's thread.
// Ownership: host and device buffers belong to the device from the call until the event behind it.
// Cancel rule: wait(stop_token) ends the waiting at once with Stopped; the device's work goes on.
//
//   DeviceBuffer x = device.allocate(bytes);
//   DeviceStream copies = device.stream("copies");
//   copies.to_device(x.data(), host);
//   compute.wait(copies.record());
//   compute.launch("scale", cost, fn);
//   co_await compute.record().wait();
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/event.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

/// The device failed, or refused. It is unusable from then on, unless it was out of memory.
class DeviceError : public Error {
 public:
  using Error::Error;
};
class DeviceOutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

class Device;

/// The numbers of operations that a device was given, and the bytes that its copies move.
struct DeviceCounts {
  std::uint64_t launches = 0;
  std::uint64_t waits = 0;  // of the host for an event
  std::uint64_t to_device_bytes = 0;
  std::uint64_t to_host_bytes = 0;
  std::uint64_t within_device_bytes = 0;

  friend DeviceCounts operator-(const DeviceCounts& a, const DeviceCounts& b) noexcept {
    return {.launches = a.launches - b.launches,
            .waits = a.waits - b.waits,
            .to_device_bytes = a.to_device_bytes - b.to_device_bytes,
            .to_host_bytes = a.to_host_bytes - b.to_host_bytes,
            .within_device_bytes = a.within_device_bytes - b.within_device_bytes};
  }
  friend bool operator==(const DeviceCounts&, const DeviceCounts&) = default;
};

/// Device memory; freed by the destructor, which may run only when no queued operation uses it.
class DeviceBuffer {
 public:
  DeviceBuffer() noexcept = default;
  DeviceBuffer(Device& device, std::byte* data, std::size_t bytes) noexcept
      : device_(&device), data_(data), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

namespace detail {
/// A recorded point of a stream. It travels to the loop as an op, and keeps itself alive meanwhile.
struct DevicePoint : Op {
  explicit DevicePoint(EventLoop& home) noexcept : Op(&DevicePoint::arrive), loop(home) {}
  /// Tells the loop that the point was reached, or has failed if `failed` is not null. Any thread,
  /// once.
  static void reach(std::shared_ptr<DevicePoint> point, std::exception_ptr failed) noexcept {
    DevicePoint& self = *point;
    self.error = std::move(failed);
    self.on_the_way = std::move(point);
    self.loop.post_from_any_thread(self);
  }
  static void arrive(Op& op) noexcept {
    auto& self = static_cast<DevicePoint&>(op);
    const std::shared_ptr<DevicePoint> last_use = std::move(self.on_the_way);
    self.known.set();
  }

  EventLoop& loop;
  Event known;  // the loop knows that it was reached
  std::exception_ptr error;
  bool passed = false;          // for the device: its streams may go on
  const void* maker = nullptr;  // marks the kind of device that made it; null: a simulated one
  std::shared_ptr<DeviceCounts> counts;  // of the device, which the point may outlive
  std::shared_ptr<DevicePoint> on_the_way;
};
}  // namespace detail

/// A point of a stream. Copies name the same point.
class DeviceEvent {
 public:
  class Awaiter;
  explicit DeviceEvent(std::shared_ptr<detail::DevicePoint> point) noexcept
      : point_(std::move(point)) {}

  /// True once the loop knows that the point was reached.
  [[nodiscard]] bool done() const noexcept { return point_->known.is_set(); }
  /// co_await lasts until all work that the stream was given before is done. Throws DeviceError or
  /// Stopped.
  [[nodiscard]] Awaiter wait(StopToken stop = {}) const noexcept;
  [[nodiscard]] const std::shared_ptr<detail::DevicePoint>& point() const noexcept {
    return point_;
  }

 private:
  std::shared_ptr<detail::DevicePoint> point_;
};

class DeviceEvent::Awaiter : public Event::Awaiter {
 public:
  static constexpr const char* kAwaitName = "device event";
  Awaiter(std::shared_ptr<detail::DevicePoint> point, StopToken stop) noexcept
      : Event::Awaiter(point->known, stop), point_(std::move(point)) {}
  void await_resume() const {
    Event::Awaiter::await_resume();
    if (point_->error != nullptr) {
      std::rethrow_exception(point_->error);
    }
  }

 private:
  std::shared_ptr<detail::DevicePoint> point_;
};

inline DeviceEvent::Awaiter DeviceEvent::wait(StopToken stop) const noexcept {
  if (point_->counts != nullptr) {
    ++point_->counts->waits;
  }
  return {point_, stop};
}

/// The expected cost of a kernel, from which a simulated device computes its time.
struct KernelCost {
  double seconds = 0;  // added to the time for flops and bytes
  double flops = 0;
  double bytes = 0;  // read and written
};

/// On a simulated device this is the kernel itself, called when its turn has come. On a real device
/// it launches the kernel on `native_stream`, and is called at once.
using Kernel = std::function<void(void* native_stream)>;

/// A handle; the stream lives as long as its device.
class DeviceStream {
 public:
  DeviceStream(Device& device, std::uint32_t number) noexcept : device_(&device), number_(number) {}

  /// Its number among the device's streams, in the order in which they were made.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

  void to_device(std::byte* device_memory, std::span<const std::byte> host);
  void to_host(std::span<std::byte> host, const std::byte* device_memory);
  /// Copies within the device's memory.
  void within_device(std::byte* to, const std::byte* from, std::size_t bytes);
  /// Sets the name of later copies in traces.
  void name_copies(Name name);
  void launch(Name name, KernelCost cost, Kernel kernel);
  /// Makes the work that this stream is given from now on run after `event`, which may be of any
  /// stream.
  void wait(const DeviceEvent& event);
  /// Marks the point behind everything that this stream was given so far.
  [[nodiscard]] DeviceEvent record();

 private:
  Device* device_;
  std::uint32_t number_;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual const std::string& name() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t memory_bytes() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t free_bytes() const noexcept = 0;
  /// Returns the counts since the device was made. Operations that others queue on its native
  /// streams are not among them.
  [[nodiscard]] const DeviceCounts& counts() const noexcept { return *counts_; }

  /// Throws DeviceOutOfMemory with the sizes.
  [[nodiscard]] DeviceBuffer allocate(std::size_t bytes) {
    return {*this, take_memory(bytes), bytes};
  }
  [[nodiscard]] DeviceStream stream(Name name) { return {*this, add_stream(name)}; }

  /// Pins this host memory (whole pages), so that copies do not go through the driver's buffers;
  /// unpin() it before it is freed. Returns false if the system refuses; the memory can be used all
  /// the same. May wait for the device.
  virtual bool pin(std::span<std::byte> memory) {
    (void)memory;
    return true;
  }
  virtual void unpin(std::span<std::byte> memory) noexcept { (void)memory; }

 protected:
  friend class DeviceBuffer;
  friend class DeviceStream;
  enum class CopyKind : unsigned char { kToDevice, kToHost, kWithinDevice };

  virtual std::byte* take_memory(std::size_t bytes) = 0;
  virtual void give_memory_back(std::byte* data, std::size_t bytes) noexcept = 0;
  virtual std::uint32_t add_stream(Name name) = 0;
  virtual void copy(std::uint32_t stream, CopyKind kind, std::byte* to, const std::byte* from,
                    std::size_t bytes) = 0;
  virtual void name_copies(std::uint32_t stream,
                           Name name) {  // does nothing if copies are not traced
    (void)stream;
    (void)name;
  }
  virtual void launch(std::uint32_t stream, Name name, KernelCost cost, Kernel kernel) = 0;
  virtual void wait(std::uint32_t stream, const DeviceEvent& event) = 0;
  virtual DeviceEvent record(std::uint32_t stream) = 0;

 private:
  std::shared_ptr<DeviceCounts> counts_ = std::make_shared<DeviceCounts>();
};

inline DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr) {
    device_->give_memory_back(data_, bytes_);
  }
}

inline void DeviceStream::to_device(std::byte* device_memory, std::span<const std::byte> host) {
  device_->counts_->to_device_bytes += host.size();
  device_->copy(number_, Device::CopyKind::kToDevice, device_memory, host.data(), host.size());
}
inline void DeviceStream::to_host(std::span<std::byte> host, const std::byte* device_memory) {
  device_->counts_->to_host_bytes += host.size();
  device_->copy(number_, Device::CopyKind::kToHost, host.data(), device_memory, host.size());
}
inline void DeviceStream::within_device(std::byte* to, const std::byte* from, std::size_t bytes) {
  device_->counts_->within_device_bytes += bytes;
  device_->copy(number_, Device::CopyKind::kWithinDevice, to, from, bytes);
}
inline void DeviceStream::name_copies(Name name) { device_->name_copies(number_, name); }
inline void DeviceStream::launch(Name name, KernelCost cost, Kernel kernel) {
  ++device_->counts_->launches;
  device_->launch(number_, name, cost, std::move(kernel));
}
inline void DeviceStream::wait(const DeviceEvent& event) { device_->wait(number_, event); }
inline DeviceEvent DeviceStream::record() {
  DeviceEvent event = device_->record(number_);
  event.point()->counts = device_->counts_;
  return event;
}

}  // namespace tandem
