// tests/support/fakes/fake_cuda.hpp — CUDA as the project's table of functions sees it, on the CPU
// and in a clock's time.
//
// A stream is a queue: an operation starts when those before it are done (and the event it waits
// for is reached), takes its time, and does its work at its end, so that who reads too early sees
// old data. An operation may also wait for something outside of its stream (a collective's peers).
// Time is looked at in every call. Device memory is host memory of a book: a copy from or to an
// address that lies in no allocation is an error, as is one out of its bounds. The table's
// functions have no argument for a fake, so one lives at a time. Any thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/device/cuda_api.hpp"
#include "runtime/util/check.hpp"
#include "tests/support/uncounted.hpp"

namespace tandem::test {

class FakeCuda {
 public:
  static constexpr int kIllegalAddress = 700;
  static constexpr int kNoDevice = 100;
  /// Work of a stream: ready() is asked until it says yes, then `cost` passes, then run().
  struct Work {
    std::function<bool()> ready = {};
    Duration cost{0};
    std::function<void()> run = {};
  };

  explicit FakeCuda(const Clock& clock) : clock_(clock) {
    TANDEM_CHECK(current() == nullptr, "one fake lives at a time");
    current() = this;
  }
  ~FakeCuda() { current() = nullptr; }
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  static const CudaApi& api();
  static FakeCuda& of_test() { return *current(); }

  // ---- what a test sets and sees ----
  std::size_t memory_bytes = std::size_t{1} << 30;  // per device
  std::size_t pinned_limit = SIZE_MAX;              // per piece
  Duration copy_cost = std::chrono::microseconds(1);
  int devices = 8;
  int driver = 13000;
  int fail_make_event = 0;         // if not 0: what the next one says
  bool pageable_is_wrong = false;  // copies from or to ordinary memory are counted
  bool aten_is_there = false;      // ... which is taken for ATen's on the device

  /// Everything that the devices are asked from now on fails with it, and nothing runs any more.
  void lose(int status = kIllegalAddress) {
    const std::lock_guard lock(mutex_);
    lost_ = status;
  }
  /// The next launch is refused.
  void refuse_launch(int status) {
    const std::lock_guard lock(mutex_);
    launch_error_ = status;
  }
  [[nodiscard]] std::size_t used_bytes() const { return used_; }
  [[nodiscard]] int live_events() const { return live_events_; }
  [[nodiscard]] int made_events() const { return made_events_; }
  [[nodiscard]] int live_streams() const { return live_streams_; }
  [[nodiscard]] int queries() const { return queries_; }
  /// Calls that may wait for a whole device: memory taken, memory pinned, streams made.
  [[nodiscard]] int heavy_calls() const { return heavy_calls_; }
  [[nodiscard]] int pageable_copies() const { return pageable_copies_; }
  /// Memory that was given back (unpinned) while a copy of it was queued.
  [[nodiscard]] int frees_in_use() const { return frees_in_use_; }
  [[nodiscard]] std::size_t pinned_pieces() const { return pinned_memory_.size(); }
  [[nodiscard]] bool is_device_memory(const void* at, std::size_t bytes) const {
    return in_book(device_memory_, at, bytes);
  }
  /// Device or pinned memory: what a kernel reaches.
  [[nodiscard]] bool is_reached(const void* at, std::size_t bytes) const {
    return in_book(device_memory_, at, bytes) || in_book(pinned_memory_, at, bytes);
  }
  /// That, or what is taken for ATen's.
  [[nodiscard]] bool may_reach(const void* at, std::size_t bytes) const {
    return aten_is_there || is_reached(at, bytes);
  }
  [[nodiscard]] bool is_high(void* stream) const { return static_cast<Stream*>(stream)->high; }

  /// Queues work on the stream, as a kernel's launch does. The caller holds no lock of the fake.
  void launch(void* stream, Work work) {
    const Uncounted uncounted;
    const std::lock_guard lock(mutex_);
    static_cast<Stream*>(stream)->queue.push_back({.work = std::move(work)});
    advance();
  }

 private:
  struct Event {
    std::uint64_t recorded = 0;  // how often
    std::uint64_t reached = 0;   // the last of these that was
  };
  struct Operation {
    Work work = {};
    Event* reaches = nullptr;
    Event* waits_for = nullptr;
    std::uint64_t number = 0;       // among the event's records
    const std::byte* to = nullptr;  // a copy's
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  struct Stream {
    std::deque<Operation> queue;
    bool started = false;  // the first one
    TimePoint ends;
    bool high = false;
  };
  using Book = std::map<const std::byte*, std::size_t>;

  static FakeCuda*& current() {
    static FakeCuda* fake = nullptr;
    return fake;
  }
  static bool in_book(const Book& book, const void* at, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(at);
    auto after = book.upper_bound(begin);
    if (after == book.begin()) {
      return false;
    }
    --after;
    return begin + bytes <= after->first + after->second;
  }

  void look_for_copies_of(const std::byte* memory, std::size_t bytes) {
    for (const std::unique_ptr<Stream>& stream : streams_) {
      for (const Operation& queued : stream->queue) {
        const auto touches = [&](const std::byte* at) {
          return queued.bytes > 0 && at < memory + bytes && memory < at + queued.bytes;
        };
        frees_in_use_ += touches(queued.to) || touches(queued.from) ? 1 : 0;
      }
    }
  }

  // Until nothing can go on at this time.
  void advance() {
    const TimePoint now = clock_.now();
    for (bool moved = lost_ == 0; moved;) {
      moved = false;
      for (const std::unique_ptr<Stream>& stream : streams_) {
        moved = advance(*stream, now) || moved;
      }
    }
  }
  static bool advance(Stream& stream, TimePoint now) {
    if (stream.queue.empty()) {
      return false;
    }
    Operation& first = stream.queue.front();
    if (!stream.started) {
      if ((first.waits_for != nullptr && first.waits_for->reached < first.number) ||
          (first.work.ready && !first.work.ready())) {
        return false;
      }
      stream.started = true;
      stream.ends = std::max(stream.ends, now) + first.work.cost;
    }
    if (now < stream.ends) {
      return false;
    }
    if (first.work.run) {
      first.work.run();
    }
    if (first.reaches != nullptr) {
      first.reaches->reached = first.number;
    }
    stream.queue.pop_front();
    stream.started = false;
    return true;
  }

  template <class Body>
  static int locked(Body body, bool even_if_lost = false) {
    FakeCuda& fake = of_test();
    const Uncounted uncounted;
    const std::lock_guard lock(fake.mutex_);
    fake.advance();
    return fake.lost_ != 0 && !even_if_lost ? fake.lost_ : body(fake);
  }

  const Clock& clock_;
  mutable std::mutex mutex_;
  int lost_ = 0;
  int launch_error_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  Book device_memory_;
  Book pinned_memory_;
  std::size_t used_ = 0;
  int live_events_ = 0;
  int made_events_ = 0;
  int live_streams_ = 0;
  int queries_ = 0;
  int heavy_calls_ = 0;
  int pageable_copies_ = 0;
  int frees_in_use_ = 0;
};

inline const CudaApi& FakeCuda::api() {
  static constexpr CudaApi kFake{
      .name_of =
          [](int status) {
            return status == kIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorOther";
          },
      .text_of = [](int) { return "the fake says so"; },
      .take_last_error =
          [] { return locked([](FakeCuda& f) { return std::exchange(f.launch_error_, 0); }); },
      .driver_version =
          [](int* version) {
            return locked([=](FakeCuda& f) {
              *version = f.driver;
              return 0;
            });
          },
      .use_device =
          [](int device) {
            return locked([=](FakeCuda& f) { return device < f.devices ? 0 : kNoDevice; });
          },
      .memory_info =
          [](std::size_t* free_bytes, std::size_t* total) {
            return locked([=](FakeCuda& f) {
              *free_bytes = f.memory_bytes - f.used_;
              *total = f.memory_bytes;
              return 0;
            });
          },
      .take_memory =
          [](void** memory, std::size_t bytes, void*) {
            return locked([=](FakeCuda& f) -> int {
              ++f.heavy_calls_;
              if (bytes > f.memory_bytes - f.used_) {
                return CudaApi::kOutOfMemory;
              }
              *memory = ::operator new(bytes, std::align_val_t{512});
              std::memset(*memory, 0xA5, bytes);
              f.device_memory_[static_cast<std::byte*>(*memory)] = bytes;
              f.used_ += bytes;
              return 0;
            });
          },
      .give_memory_back =
          [](void* memory, void*) {
            return locked(
                [=](FakeCuda& f) {
                  const auto found = f.device_memory_.find(static_cast<std::byte*>(memory));
                  TANDEM_CHECK(found != f.device_memory_.end(), "memory given back was taken");
                  f.look_for_copies_of(found->first, found->second);
                  f.used_ -= found->second;
                  f.device_memory_.erase(found);
                  ::operator delete(memory, std::align_val_t{512});
                  return 0;
                },
                true);
          },
      .take_pinned =
          [](void** memory, std::size_t bytes) {
            return locked([=](FakeCuda& f) -> int {
              ++f.heavy_calls_;
              if (bytes > f.pinned_limit) {
                return CudaApi::kOutOfMemory;
              }
              *memory = ::operator new(bytes, std::align_val_t{4096}, std::nothrow);
              if (*memory == nullptr) {
                return CudaApi::kOutOfMemory;
              }
              std::memset(*memory, 0xA5, bytes);
              f.pinned_memory_[static_cast<std::byte*>(*memory)] = bytes;
              return 0;
            });
          },
      .give_pinned_back =
          [](void* memory) {
            const int status = locked(
                [=](FakeCuda& f) {
                  f.pinned_memory_.erase(static_cast<std::byte*>(memory));
                  return 0;
                },
                true);
            ::operator delete(memory, std::align_val_t{4096});
            return status;
          },
      .pin =
          [](void* memory, std::size_t bytes) {
            return locked([=](FakeCuda& f) -> int {
              ++f.heavy_calls_;
              if (bytes > f.pinned_limit) {
                return CudaApi::kOutOfMemory;
              }
              const auto* const at = static_cast<std::byte*>(memory);
              return f.pinned_memory_.emplace(at, bytes).second ? CudaApi::kSuccess
                                                                : CudaApi::kAlreadyPinned;
            });
          },
      .unpin =
          [](void* memory) {
            return locked(
                [=](FakeCuda& f) {
                  const auto found = f.pinned_memory_.find(static_cast<std::byte*>(memory));
                  TANDEM_CHECK(found != f.pinned_memory_.end(), "what is unpinned was pinned");
                  f.look_for_copies_of(found->first, found->second);
                  f.pinned_memory_.erase(found);
                  return 0;
                },
                true);
          },
      .make_stream =
          [](void** stream, bool high) {
            return locked([=](FakeCuda& f) {
              ++f.heavy_calls_;
              f.streams_.push_back(std::make_unique<Stream>());
              f.streams_.back()->high = high;
              *stream = f.streams_.back().get();
              ++f.live_streams_;
              return 0;
            });
          },
      .destroy_stream =
          [](void*) {
            const std::lock_guard lock(of_test().mutex_);
            --of_test().live_streams_;  // queued work runs on
            return 0;
          },
      .make_event =
          [](void** event) {
            return locked([=](FakeCuda& f) {
              if (f.fail_make_event != 0) {
                return std::exchange(f.fail_make_event, 0);
              }
              *event = new Event();
              ++f.live_events_;
              ++f.made_events_;
              return 0;
            });
          },
      .destroy_event =
          [](void* event) {
            // Queued operations may still refer to it, as the driver allows: the fake keeps it for
            // good.
            const std::lock_guard lock(of_test().mutex_);
            static std::vector<std::unique_ptr<Event>> kept;
            kept.emplace_back(static_cast<Event*>(event));
            --of_test().live_events_;
            return 0;
          },
      .record =
          [](void* event, void* stream) {
            return locked([=](FakeCuda& f) {
              auto* const at = static_cast<Event*>(event);
              static_cast<Stream*>(stream)->queue.push_back(
                  {.reaches = at, .number = ++at->recorded});
              f.advance();
              return 0;
            });
          },
      .query =
          [](void* event) {
            return locked([=](FakeCuda& f) -> int {
              ++f.queries_;
              const auto* const at = static_cast<Event*>(event);
              return at->reached == at->recorded ? CudaApi::kSuccess : CudaApi::kNotReady;
            });
          },
      .wait =
          [](void* stream, void* event) {
            return locked([=](FakeCuda&) {
              auto* const at = static_cast<Event*>(event);
              static_cast<Stream*>(stream)->queue.push_back(
                  {.waits_for = at, .number = at->recorded});
              return 0;
            });
          },
      .copy =
          [](void* to, const void* from, std::size_t bytes, void* stream) {
            return locked([=](FakeCuda& f) -> int {
              const bool of_aten =
                  f.aten_is_there && (f.is_reached(to, bytes) || f.is_reached(from, bytes));
              if (!f.is_device_memory(to, bytes) && !f.is_device_memory(from, bytes) &&
                  !f.is_reached(to, bytes) && !of_aten) {
                return 1;  // invalid value
              }
              const bool straight =
                  of_aten || (f.is_reached(to, bytes) && f.is_reached(from, bytes));
              f.pageable_copies_ += f.pageable_is_wrong && !straight ? 1 : 0;
              static_cast<Stream*>(stream)->queue.push_back(
                  {.work = {.cost = f.copy_cost, .run = [=] { std::memcpy(to, from, bytes); }},
                   .to = static_cast<std::byte*>(to),
                   .from = static_cast<const std::byte*>(from),
                   .bytes = bytes});
              return 0;
            });
          }};
  return kFake;
}

}  // namespace tandem::test
