#include "runtime/device/sim_device.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include <sys/mman.h>

#include "runtime/detail/timer_heap.hpp"
#include "runtime/thread.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::align_val_t kAlignment{256};

Duration seconds(double value) noexcept { return Duration(static_cast<std::int64_t>(value * 1e9)); }

/// Returns addresses without memory behind them.
std::byte* take_addresses(std::size_t bytes) {
  void* const taken =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TANDEM_CHECK(taken != MAP_FAILED, "addresses without memory cost nothing");
  return static_cast<std::byte*>(taken);
}

}  // namespace

class SimDevice::Driver {
 public:
  virtual ~Driver() = default;
  virtual void add(std::uint32_t stream, SimEngines::Operation operation) = 0;
  virtual std::uint32_t add_stream(Name name) = 0;
  virtual void fail(std::exception_ptr error) = 0;
  [[nodiscard]] virtual Duration busy(SimEngines::Engine engine) = 0;
  [[nodiscard]] virtual bool idle() = 0;
};

// The loop's timers.
class SimDevice::LoopDriver final : public Driver {
 public:
  explicit LoopDriver(EventLoop& loop) : loop_(loop) {}
  ~LoopDriver() override { loop_.take_back(timer_); }

  void add(std::uint32_t stream, SimEngines::Operation operation) override {
    engines_.add(stream, std::move(operation), loop_.now());
    arm();
  }
  std::uint32_t add_stream(Name name) override { return engines_.add_stream(name); }
  void fail(std::exception_ptr error) override { engines_.fail(std::move(error)); }
  Duration busy(SimEngines::Engine engine) override { return engines_.busy(engine); }
  bool idle() override { return engines_.next_end() == TimePoint::max(); }

 private:
  struct Timer : TimerOp {
    explicit Timer(LoopDriver& owner) noexcept
        : TimerOp([](Op& op) noexcept {
            auto& self = static_cast<Timer&>(op);
            self.under_way = false;
            self.driver.engines_.advance(self.driver.loop_.now());
            self.driver.arm();
          }),
          driver(owner) {}
    LoopDriver& driver;
    bool under_way = false;  // armed, or due and in the loop's queue
  };
  void arm() {
    if (timer_.under_way && !timer_.armed()) {
      return;  // due: it looks at everything when it has its turn
    }
    loop_.disarm(timer_);
    const TimePoint next = engines_.next_end();
    timer_.under_way = next != TimePoint::max();
    if (timer_.under_way) {
      loop_.arm(timer_, next);
    }
  }

  EventLoop& loop_;
  SimEngines engines_{false};
  Timer timer_{*this};
};

// A thread that sleeps until something ends.
class SimDevice::ThreadDriver final : public Driver {
 public:
  explicit ThreadDriver(const std::string& name) : thread_([this, name] { work(name); }) {}
  ~ThreadDriver() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void add(std::uint32_t stream, SimEngines::Operation operation) override {
    {
      const std::lock_guard lock(mutex_);
      arrived_.push_back({stream, std::move(operation), Clock::real().now()});
    }
    changed_.notify_one();
  }
  std::uint32_t add_stream(Name name) override {
    const std::lock_guard lock(engines_mutex_);
    return engines_.add_stream(name);
  }
  void fail(std::exception_ptr error) override {
    const std::lock_guard lock(engines_mutex_);
    engines_.fail(std::move(error));
  }
  Duration busy(SimEngines::Engine engine) override {
    const std::lock_guard lock(engines_mutex_);
    return engines_.busy(engine);
  }
  bool idle() override {
    const std::scoped_lock lock(mutex_, engines_mutex_);
    return arrived_.empty() && engines_.next_end() == TimePoint::max();
  }

 private:
  struct Arrived {
    std::uint32_t stream;
    SimEngines::Operation operation;
    TimePoint when;
  };

  void work(const std::string& name) {
    thread::set_name(name);
    // its copies and kernels are long: they begin beside the loop, not instead of it
    thread::set_background();
    TimePoint next = TimePoint::max();
    for (;;) {
      std::vector<Arrived> taken;
      {
        std::unique_lock lock(mutex_);
        const auto woken = [this] { return stopping_ || !arrived_.empty(); };
        if (next == TimePoint::max()) {
          changed_.wait(lock, woken);
        } else {
          changed_.wait_until(lock, next, woken);
        }
        if (stopping_) {
          return;
        }
        taken.swap(arrived_);
      }
      // Not under the first lock: kernels run in here, and the loop's thread queues on meanwhile.
      const std::lock_guard lock(engines_mutex_);
      for (Arrived& one : taken) {
        engines_.advance(one.when);
        engines_.add(one.stream, std::move(one.operation), one.when);
      }
      engines_.advance(Clock::real().now());
      next = engines_.next_end();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Arrived> arrived_;
  bool stopping_ = false;
  std::mutex engines_mutex_;
  SimEngines engines_{true};
  std::thread thread_;
};

SimDevice::SimDevice(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {
  TANDEM_CHECK(options_.has_memory || !options_.acts, "a device that acts has memory to act on");
  if (options_.time == Time::kVirtual) {
    driver_ = std::make_unique<LoopDriver>(loop);
  } else {
    driver_ = std::make_unique<ThreadDriver>(options_.name);
  }
}

SimDevice::~SimDevice() { driver_->fail(error("destroyed with work in its streams")); }

std::exception_ptr SimDevice::error(const std::string& what) const {
  return std::make_exception_ptr(
      DeviceError(ExitCode::kFailure,
                  fmt::format("[device] {}: {}; it can do nothing any more: restart the rank",
                              options_.name, what)));
}

void SimDevice::lose() { driver_->fail(error("the device was lost")); }

double SimDevice::busy_s(SimEngines::Engine engine) const {
  return std::chrono::duration<double>(driver_->busy(engine)).count();
}

bool SimDevice::idle() const { return driver_->idle(); }

std::byte* SimDevice::take_memory(std::size_t bytes) {
  if (bytes > free_bytes()) {
    throw DeviceOutOfMemory(
        ExitCode::kRefused,
        fmt::format("[device] {}: out of memory: {} bytes wanted, {} of {} free; use smaller "
                    "batches or fewer slots",
                    options_.name, bytes, free_bytes(), options_.memory_bytes));
  }
  std::byte* const memory = options_.has_memory
                                ? static_cast<std::byte*>(::operator new(bytes, kAlignment))
                                : take_addresses(bytes);
  used_bytes_ += bytes;
  return memory;
}

void SimDevice::give_memory_back(std::byte* data, std::size_t bytes) noexcept {
  used_bytes_ -= bytes;
  if (options_.has_memory) {
    ::operator delete(data, kAlignment);
  } else {
    TANDEM_CHECK(::munmap(data, bytes) == 0, "a device gives back the addresses that it took");
  }
}

std::uint32_t SimDevice::add_stream(Name name) { return driver_->add_stream(name); }

void SimDevice::copy(std::uint32_t stream, CopyKind kind, std::byte* to, const std::byte* from,
                     std::size_t bytes) {
  struct Way {
    Name name;
    SimEngines::Engine engine;
    double seconds_per_byte;
  };
  const Way way =
      kind == CopyKind::kToDevice
          ? Way{"copy to device", SimEngines::Engine::kToDevice, 1 / options_.to_device_bytes_per_s}
      : kind == CopyKind::kToHost
          ? Way{"copy to host", SimEngines::Engine::kToHost, 1 / options_.to_host_bytes_per_s}
          : Way{"copy on device", SimEngines::Engine::kCompute,  // read and written
                2 / options_.memory_bytes_per_s};
  const auto named = names_of_copies_.find(stream);
  SimEngines::Operation operation{
      .name = named != names_of_copies_.end() ? named->second : way.name,
      .engine = way.engine,
      .cost =
          options_.operation_latency + seconds(static_cast<double>(bytes) * way.seconds_per_byte),
      .work = [] {}};
  if (options_.acts) {
    operation.work = [to, from, bytes] { std::memcpy(to, from, bytes); };
  }
  if (copies_++ == fail_copy_) {
    operation.fails = error(fmt::format("a {} of {} bytes failed", way.name.c_str(), bytes));
  }
  driver_->add(stream, std::move(operation));
}

void SimDevice::name_copies(std::uint32_t stream, Name name) {
  names_of_copies_.insert_or_assign(stream, name);
}

void SimDevice::launch(std::uint32_t stream, Name name, KernelCost cost, Kernel kernel) {
  const double work =
      std::max(cost.flops / options_.compute_flops_per_s, cost.bytes / options_.memory_bytes_per_s);
  SimEngines::Operation operation{.name = name,
                                  .engine = SimEngines::Engine::kCompute,
                                  .cost = options_.operation_latency + seconds(cost.seconds + work),
                                  .work = [] {}};
  if (options_.acts) {
    operation.work = [run = std::move(kernel)] { run(nullptr); };
  }
  if (kernels_++ == fail_kernel_) {
    operation.fails = error(fmt::format("kernel \"{}\" failed", name.c_str()));
  }
  driver_->add(stream, std::move(operation));
}

void SimDevice::wait(std::uint32_t stream, const DeviceEvent& event) {
  driver_->add(stream, {.waits_for = event.point()});
}

DeviceEvent SimDevice::record(std::uint32_t stream) {
  auto point = std::make_shared<detail::DevicePoint>(loop_);
  driver_->add(stream, {.reaches = point});
  return DeviceEvent(std::move(point));
}

}  // namespace tandem
