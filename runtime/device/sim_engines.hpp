// runtime/device/sim_engines.hpp — schedules a simulated device's streams, engines and points, in
// any clock's time.
//
// It is passive: its owner queues operations and calls advance() with the time; next_end() tells
// when to call it next. An operation is ready when those before it in its stream are done; ready
// operations of one engine run one after another, first come, first served. Start and end follow
// from the costs alone, however late advance() is called.
// Thread rule: one at a time (its owner locks). Internal to SimDevice.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/clock.hpp"
#include "runtime/device/device.hpp"

namespace tandem {

class SimEngines {
 public:
  enum class Engine : std::uint8_t { kCompute, kToDevice, kToHost, kCount };
  using Point = std::shared_ptr<detail::DevicePoint>;

  /// One of: work for an engine, a point to reach (`reaches`), a point to wait for (`waits_for`).
  struct Operation {
    Name name = "";
    Engine engine = Engine::kCompute;
    Duration cost{0};
    std::function<void()> work = {};
    std::exception_ptr fails = {};  // if set, the operation fails with it
    Point reaches = {};
    Point waits_for = {};
  };

  /// `early`: the work is done when the operation starts, not when it ends (in real time, where it
  /// takes time itself; these operations appear in the trace).
  explicit SimEngines(bool early) noexcept : early_(early) {}

  std::uint32_t add_stream(Name name);
  void add(std::uint32_t stream, Operation operation, TimePoint now);
  /// Ends the operations that are due, and starts those that can start.
  void advance(TimePoint now);
  /// Returns when the next operation ends; TimePoint::max() if none runs.
  [[nodiscard]] TimePoint next_end() const noexcept;
  /// Drops all queued operations; their points, and all later ones, are reached with this error.
  void fail(std::exception_ptr error);
  [[nodiscard]] const std::exception_ptr& error() const noexcept { return error_; }
  /// Time in which the engine worked.
  [[nodiscard]] Duration busy(Engine engine) const noexcept {
    return engines_[static_cast<std::size_t>(engine)].busy;
  }

 private:
  struct Stream {
    Name name;
    std::deque<Operation> operations;
    bool at_engine = false;  // the first one waits at its engine, or runs
  };
  struct EngineState {
    std::deque<std::uint32_t> ready;  // streams whose first operation waits here, or runs
    bool running = false;             // the first of them
    TimePoint end;
    Duration busy{0};
  };

  void pump(TimePoint now);
  bool pass_points(Stream& stream);
  void queue_at_engine(std::uint32_t stream);
  bool start(EngineState& engine, TimePoint now);
  void finish(EngineState& engine);
  void work(Operation& operation);

  bool early_;
  std::vector<Stream> streams_;
  std::array<EngineState, static_cast<std::size_t>(Engine::kCount)> engines_;
  std::exception_ptr error_;
};

}  // namespace tandem
