#include "runtime/device/cuda_device.hpp"

#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "runtime/device/populate.hpp"
#include "runtime/io/recycling_allocator.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {
constexpr std::size_t kLargePin = std::size_t{64} << 20;  // its pages come by several threads
constexpr char kMaker = 0;  // its address marks points of CUDA devices
}  // namespace

struct CudaDevice::Point final : detail::DevicePoint {
  explicit Point(EventLoop& home) noexcept : DevicePoint(home) { maker = &kMaker; }
  void* event = nullptr;  // null: it is known to be reached
  std::shared_ptr<Point> next;
};

CudaDevice::CudaDevice(EventLoop& loop, const CudaApi& api, Options options)
    : TickingPoller(loop), loop_(loop), api_(api), options_(std::move(options)) {
  std::size_t free_now = 0;
  std::size_t total = 0;
  throw_if(api_.use_device(options_.index), "it cannot be used");
  throw_if(api_.memory_info(&free_now, &total), "its memory cannot be asked for");
  memory_bytes_ = total;
  throw_if(api_.make_stream(&memory_stream_, false), "a stream cannot be made");
  for (std::size_t i = 0; i < options_.events; ++i) {
    void* event = nullptr;
    throw_if(api_.make_event(&event), "an event cannot be made");
    free_events_.push_back(event);
    ++events_;
  }
}

CudaDevice::~CudaDevice() {
  end_all(made_error("destroyed with work in its streams"));
  for (void* event : free_events_) {
    (void)api_.destroy_event(event);
  }
  for (const Stream& stream : streams_) {
    if (!stream.adopted) {
      (void)api_.destroy_stream(stream.native);
    }
  }
  if (memory_stream_ != nullptr) {
    (void)api_.destroy_stream(memory_stream_);
  }
}

void CudaDevice::use() noexcept { (void)api_.use_device(options_.index); }

// ---- errors ----
std::string CudaDevice::words_for(CudaApi::Status status) const {
  return fmt::format("{} ({})", api_.name_of(status), api_.text_of(status));
}

std::exception_ptr CudaDevice::made_error(const std::string& what) const {
  return std::make_exception_ptr(
      DeviceError(ExitCode::kFailure,
                  fmt::format("[device] {}: {}; it can do nothing any more: restart the rank",
                              options_.name, what),
                  ErrorCategory::kDevice));
}

void CudaDevice::throw_if(CudaApi::Status status, const std::string& what) {
  if (status != CudaApi::kSuccess) {
    fail(status, what);
    std::rethrow_exception(error_);
  }
}

void CudaDevice::check(CudaApi::Status status, const char* what) noexcept {
  if (status != CudaApi::kSuccess) {
    fail(status, what);
  }
}

void CudaDevice::fail(CudaApi::Status status, const std::string& what) noexcept {
  if (error_ == nullptr) {
    error_ = made_error(fmt::format("{}: {}", what, words_for(status)));
    end_all(error_);
  }
}

void CudaDevice::end_all(const std::exception_ptr& error) noexcept {
  for (Stream& stream : streams_) {
    while (stream.oldest != nullptr) {
      const std::shared_ptr<Point> point = std::move(stream.oldest);
      stream.oldest = std::move(point->next);
      free_events_.push_back(std::exchange(point->event, nullptr));
      point->error = error;
      point->known.set();
    }
    stream.newest = nullptr;
  }
  waiting_ = 0;
  rest();
}

// ---- memory ----
std::uint64_t CudaDevice::free_bytes() const noexcept {
  std::size_t free_now = 0;
  std::size_t total = 0;
  (void)api_.use_device(options_.index);
  return api_.memory_info(&free_now, &total) == CudaApi::kSuccess ? free_now : 0;
}

std::byte* CudaDevice::take_memory(std::size_t bytes) {
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
  if (bytes == 0) {
    return nullptr;
  }
  use();
  void* memory = nullptr;
  const CudaApi::Status status = api_.take_memory(&memory, bytes, memory_stream_);
  if (status == CudaApi::kOutOfMemory) {
    throw DeviceOutOfMemory(
        ExitCode::kRefused,
        fmt::format("[device] {}: out of memory: {} bytes wanted, {} of {} free; use smaller "
                    "batches or fewer slots",
                    options_.name, bytes, free_bytes(), memory_bytes_));
  }
  throw_if(status, fmt::format("{} bytes cannot be had", bytes));
  return static_cast<std::byte*>(memory);
}

void CudaDevice::give_memory_back(std::byte* data, std::size_t /*bytes*/) noexcept {
  if (data != nullptr) {
    use();
    (void)api_.give_memory_back(data, memory_stream_);
  }
}

// Memory that another device of this process has pinned is pinned for the whole process, and only
// that device unpins it.
bool CudaDevice::pin(std::span<std::byte> memory) {
  if (memory.empty() || error_ != nullptr) {
    return true;
  }
  use();
  if (memory.size() >= kLargePin) {
    populate(memory, options_.node);
  }
  const CudaApi::Status status = api_.pin(memory.data(), memory.size());
  if (status == CudaApi::kSuccess) {
    pinned_.insert(memory.data());
  }
  if (status == CudaApi::kSuccess || status == CudaApi::kAlreadyPinned) {
    return true;
  }
  if (!std::exchange(said_unpinned_, true)) {
    fmt::print(stderr,
               "[memory] {} bytes of host memory cannot be pinned for {}; copies are slower: raise "
               "the limit of locked memory (ulimit -l)\n",
               memory.size(), options_.name);
  }
  return false;
}

void CudaDevice::unpin(std::span<std::byte> memory) noexcept {
  if (pinned_.erase(memory.data()) > 0) {
    use();
    (void)api_.unpin(memory.data());
  }
}

// ---- streams ----
DeviceStream CudaDevice::adopt(Name name, void* native) {
  streams_.push_back({.name = name, .native = native, .adopted = true});
  free_events_.reserve(events_ + streams_.size());
  return {*this, static_cast<std::uint32_t>(streams_.size() - 1)};
}

DeviceStream CudaDevice::stream(Name name, Priority priority) {
  return {*this, make_stream(name, priority == Priority::kHigh)};
}

std::uint32_t CudaDevice::add_stream(Name name) { return make_stream(name, false); }

std::uint32_t CudaDevice::make_stream(Name name, bool high) {
  use();
  Stream made{.name = name};
  throw_if(api_.make_stream(&made.native, high), "a stream cannot be made");
  streams_.push_back(std::move(made));
  free_events_.reserve(events_ + streams_.size());
  return static_cast<std::uint32_t>(streams_.size() - 1);
}

void CudaDevice::copy(std::uint32_t stream, CopyKind kind, std::byte* to, const std::byte* from,
                      std::size_t bytes) {
  if (error_ != nullptr || bytes == 0) {
    return;
  }
  const CudaApi::Status status = api_.copy(to, from, bytes, streams_[stream].native);
  if (status != CudaApi::kSuccess) {
    fail(status,
         fmt::format("a copy of {} bytes to the {} on stream \"{}\" failed", bytes,
                     kind == CopyKind::kToHost ? "host" : "device", streams_[stream].name.c_str()));
  }
}

void CudaDevice::launch(std::uint32_t stream, Name name, KernelCost /*cost*/, Kernel kernel) {
  if (error_ != nullptr) {
    return;
  }
  use();
  kernel(streams_[stream].native);
  const CudaApi::Status status = api_.take_last_error();
  if (status != CudaApi::kSuccess) {
    fail(status, fmt::format("kernel \"{}\" on stream \"{}\" cannot be launched", name.c_str(),
                             streams_[stream].name.c_str()));
  }
}

// A point that is known to be reached needs no wait, and has given its event back.
void CudaDevice::wait(std::uint32_t stream, const DeviceEvent& event) {
  TANDEM_CHECK(event.point()->maker == &kMaker,
               "a stream waits for points of the same kind of device");
  const auto& point = static_cast<const Point&>(*event.point());
  if (error_ == nullptr && point.event != nullptr) {
    check(api_.wait(streams_[stream].native, point.event), "a stream cannot wait for an event");
  }
}

// ---- points ----
void* CudaDevice::take_event() {
  if (free_events_.empty()) {
    use();
    void* event = nullptr;
    throw_if(api_.make_event(&event), "an event cannot be made");
    ++events_;
    free_events_.reserve(events_);  // so that giving one back never allocates
    return event;
  }
  void* const event = free_events_.back();
  free_events_.pop_back();
  return event;
}

DeviceEvent CudaDevice::record(std::uint32_t stream) {
  auto point = std::allocate_shared<Point>(detail::RecyclingAllocator<Point>(), loop_);
  if (error_ == nullptr) {
    point->event = take_event();
    const CudaApi::Status status = api_.record(point->event, streams_[stream].native);
    if (status == CudaApi::kSuccess) {
      Stream& at = streams_[stream];
      (at.oldest == nullptr ? at.oldest : at.newest->next) = point;
      at.newest = point;
      ++waiting_;
      watch();
      return DeviceEvent(std::move(point));
    }
    free_events_.push_back(std::exchange(point->event, nullptr));
    fail(status, "an event cannot be recorded");
  }
  point->error = error_;
  point->known.set();
  return DeviceEvent(std::move(point));
}

bool CudaDevice::progress() noexcept {
  bool found = false;
  for (Stream& stream : streams_) {
    found |= look_at(stream);
  }
  if (waiting_ == 0) {
    rest();
  }
  return found;
}

bool CudaDevice::look_at(Stream& stream) noexcept {
  bool found = false;
  while (stream.oldest != nullptr) {
    const CudaApi::Status status = api_.query(stream.oldest->event);
    if (status == CudaApi::kNotReady) {
      break;
    }
    if (status != CudaApi::kSuccess) {
      fail(status, fmt::format("work of stream \"{}\" failed", stream.name.c_str()));
      return true;
    }
    const std::shared_ptr<Point> point = std::move(stream.oldest);
    stream.oldest = std::move(point->next);
    if (stream.oldest == nullptr) {
      stream.newest = nullptr;
    }
    free_events_.push_back(std::exchange(point->event, nullptr));
    --waiting_;
    point->known.set();
    found = true;
  }
  return found;
}

}  // namespace tandem
