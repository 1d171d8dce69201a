// runtime/device/sim_device.hpp — a device without hardware: kernels are plain functions that
// really run, speeds are set.
//
// kVirtual: time is the loop's clock (a ManualClock, a simulated world, or the real one):
// operations end by timers of the loop, and an operation's work is done at its end, so that a
// reader that reads too early sees old data. kReal: a thread of its own works and waits, for
// benches without a GPU; work is done at the operation's start, and an operation never ends before
// it would on the device described.
// Thread rule: as Device. The loop's thread destroys it: operations that are still queued are
// dropped, and their events end with an error.
//
//   SimDevice gpu(loop, {.compute_flops_per_s = 900e12, .to_device_bytes_per_s = 50e9});
#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/device/device.hpp"
#include "runtime/device/sim_engines.hpp"

namespace tandem {

class SimDevice final : public Device {
 public:
  enum class Time { kVirtual, kReal };
  struct Options {
    std::string name = "sim0";
    Time time = Time::kVirtual;
    std::uint64_t memory_bytes = std::uint64_t{1} << 30;
    double compute_flops_per_s = 100e12;
    double memory_bytes_per_s = 2e12;  // of kernels
    double to_device_bytes_per_s = 25e9;
    double to_host_bytes_per_s = 25e9;
    Duration operation_latency = std::chrono::microseconds(3);  // of each copy and kernel
    // If false, copies and kernels take their time and do nothing. For measurements of a schedule
    // whose data do not matter: a real device takes no time from the host's cores, and a thread
    // that simulates one would.
    bool acts = true;
    bool has_memory = true;  // false: addresses without memory; acts must be false, too
  };
  SimDevice(EventLoop& loop, Options options);
  ~SimDevice() override;

  // ---- faults
  /// Makes the n-th kernel (copy) from now on fail, counted from 0 in the order of queueing.
  void fail_kernel(std::uint64_t n = 0) noexcept { fail_kernel_ = kernels_ + n; }
  void fail_copy(std::uint64_t n = 0) noexcept { fail_copy_ = copies_ + n; }
  /// The number of kernels (copies) that were queued so far.
  [[nodiscard]] std::uint64_t kernels() const noexcept { return kernels_; }
  [[nodiscard]] std::uint64_t copies() const noexcept { return copies_; }
  /// Makes the device fail, as if it had fallen off the bus.
  void lose();

  [[nodiscard]] bool has_memory() const noexcept { return options_.has_memory; }
  /// Whether no copy or kernel is under way.
  [[nodiscard]] bool idle() const;
  /// Time in which the engine worked, in seconds.
  [[nodiscard]] double busy_s(SimEngines::Engine engine) const;

  [[nodiscard]] const std::string& name() const noexcept override { return options_.name; }
  [[nodiscard]] std::uint64_t memory_bytes() const noexcept override {
    return options_.memory_bytes;
  }
  [[nodiscard]] std::uint64_t free_bytes() const noexcept override {
    return options_.memory_bytes - used_bytes_;
  }

 protected:
  std::byte* take_memory(std::size_t bytes) override;
  void give_memory_back(std::byte* data, std::size_t bytes) noexcept override;
  std::uint32_t add_stream(Name name) override;
  void copy(std::uint32_t stream, CopyKind kind, std::byte* to, const std::byte* from,
            std::size_t bytes) override;
  void name_copies(std::uint32_t stream, Name name) override;
  void launch(std::uint32_t stream, Name name, KernelCost cost, Kernel kernel) override;
  void wait(std::uint32_t stream, const DeviceEvent& event) override;
  DeviceEvent record(std::uint32_t stream) override;

 private:
  static constexpr std::uint64_t kNever = UINT64_MAX;
  class Driver;  // gives the engines their time
  class LoopDriver;
  class ThreadDriver;

  [[nodiscard]] std::exception_ptr error(const std::string& what) const;

  EventLoop& loop_;
  Options options_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t kernels_ = 0;
  std::uint64_t copies_ = 0;
  std::uint64_t fail_kernel_ = kNever;
  std::uint64_t fail_copy_ = kNever;
  std::map<std::uint32_t, Name> names_of_copies_;  // by stream
  std::unique_ptr<Driver> driver_;
};

}  // namespace tandem
