// tests/runtime/cancel/cancel_scenarios.hpp — the scenarios of the enumeration that need no
// mailbox.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <asio/steady_timer.hpp>
#include <unistd.h>

#include "runtime/channel.hpp"
#include "runtime/completion.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/event.hpp"
#include "runtime/first_of.hpp"
#include "runtime/io/asio_await.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/io/net.hpp"
#include "runtime/semaphore.hpp"
#include "runtime/when_all.hpp"
#include "runtime/with_deadline.hpp"
#include "tests/runtime/cancel/cancel_enumeration.hpp"

namespace tandem::test {

using namespace std::chrono_literals;

inline Task<int> nap(Duration time) {
  const StopToken stop = co_await current_stop_token();
  const Tracked tracked;
  co_await sleep_for(time, stop);
  co_return 1;
}

struct Sleeps : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    const StopToken stop = co_await current_stop_token();
    co_await sleep_for(5ms, stop);
    pass();
    co_await sleep_until(loop.now() + 5ms, stop);
    pass();
    co_await yield();
    pass();
    co_await yield();
    pass();
  }
};

struct Events : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    const StopToken stop = co_await current_stop_token();
    co_await event.wait(stop);
    pass();
    co_await latch.wait(stop);
    pass();
    co_await plain;  // no token: it is set in the end
    pass();
    co_await plain_latch;
    pass();
  }
  void between(int step) override {
    if (step == 5) {
      event.set();
    }
    if (step == 9 || step == 12) {
      latch.count_down();
    }
    if (step == 15) {
      plain.set();
    }
    if (step == 18) {
      plain_latch.count_down();
    }
  }
  Event event;
  Latch latch{2};
  Event plain;
  Latch plain_latch{1};
};

// Values come out of a channel in the order of their sends, each once; a value of a stopped send
// does not come out. The other end is between(), some steps later.
struct Channels : Scenario {
  using Scenario::Scenario;
  struct Value {
    int number;
    Tracked tracked = {};
  };
  Task<> run() override {
    const StopToken stop = co_await current_stop_token();
    for (int i = 0; i < 3; ++i) {  // one fits, so that the second and the third wait
      EXPECT_TRUE(co_await out.send(Value{i}, stop));
      ++sent;
      pass();
    }
    for (int i = 0; i < 2; ++i) {
      const std::optional<Value> value = co_await in.receive(stop);
      EXPECT_EQ(value.value().number, received);
      ++received;
      pass();
    }
    Semaphore::Permit permit = co_await semaphore.acquire(stop);
    EXPECT_EQ(semaphore.available(), 0U);
    pass();
    const Semaphore::Permit second = co_await semaphore.acquire(stop);
    pass();
  }
  void between(int step) override {
    if (step == kFinishing || step % 4 != 3) {
      return;
    }
    take();
    if (offered == received) {
      offered += in.try_send(Value{offered}) ? 1 : 0;
    }
    if (passed >= 6) {
      other.reset();
    }
  }
  void take() {
    if (const std::optional<Value> value = out.try_receive()) {
      EXPECT_EQ(value->number, taken);
      ++taken;
    }
  }
  Task<> finish() override {
    while (out.size() > 0) {
      take();
    }
    EXPECT_EQ(taken, sent);
    EXPECT_EQ(offered, received + static_cast<int>(in.size()));
    other.reset();
    EXPECT_EQ(semaphore.available(), 2U);
    co_return;
  }
  Channel<Value> out{1};
  Channel<Value> in{1};
  Semaphore semaphore{2};
  std::optional<Semaphore::Permit> other = semaphore.try_acquire();
  int sent = 0;
  int taken = 0;
  int offered = 0;
  int received = 0;
};

// ---- compositions
struct Compositions : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    auto [a, b] = co_await when_all(nap(3ms), nap(5ms));
    EXPECT_EQ(a + b, 2);
    pass();
    EXPECT_EQ((co_await when_all(std::vector<int>{1, 2, 3},
                                 [](int ms) -> Task<int> { return nap(ms * 1ms); }))
                  .size(),
              3U);
    pass();
    EXPECT_EQ((co_await first_of(nap(6ms), nap(3ms))).index, 1U);
    pass();
    EXPECT_EQ(co_await with_deadline(9ms, &nap, 4ms), 1);
    pass();
    bool late = false;
    try {
      (void)co_await with_deadline(4ms, &nap, 1h);
    } catch (const DeadlineExceeded&) {
      late = true;
    }
    EXPECT_TRUE(late);
    pass();
    // All of them in each other.
    auto [c, d] = co_await when_all(with_deadline(9ms, [] { return nap(3ms); }), nap(2ms));
    EXPECT_EQ(c + d, 2);
    pass();
    co_await with_scope([](Scope& scope) -> Task<> {
      for (int i = 0; i < 3; ++i) {
        scope.spawn("napper", [](int ms) -> Task<> { (void)co_await nap(ms * 1ms); }, i + 1);
      }
      co_await scope.empty();
      co_await scope.join();
    });
    pass();
  }
};

// ---- other threads: what they do ends when the gate opens
struct Threads : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    const auto job = [this] {
      while (!gate.exchange(false)) {
        gate.wait(false);
      }
      return 3;
    };
    Completion<int> completion(loop);
    waiting = &completion;
    EXPECT_EQ(co_await completion, 5);
    pass();
    EXPECT_EQ(co_await lane.run(job), 3);
    pass();
    EXPECT_EQ(co_await pool.run(job), 3);
    pass();
    co_await pool.for_chunks(2, [&job](std::size_t) { job(); });
    pass();
  }
  void between(int step) override {
    if (waiting != nullptr && step == 4) {
      std::exchange(waiting, nullptr)->set_value(5);
    }
    if (step % 4 == 3) {
      gate = true;
      gate.notify_one();
    }
    let_threads_run();
  }
  std::atomic<bool> gate{false};
  Completion<int>* waiting = nullptr;
  ComputeLane lane{loop};
  CpuPool pool{loop, {.threads = 2}};
};

struct Files : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    std::array<std::byte, 64> bytes{};
    IoFile file = co_await io.open(path, OpenMode::kReadWrite);
    pass();
    co_await io.write(file, 0, bytes);
    pass();
    EXPECT_EQ(co_await io.read(file, 0, bytes), bytes.size());
    pass();
    EXPECT_EQ(co_await io.size(file), bytes.size());
    pass();
    co_await io.close(std::move(file));
    pass();
    co_await io.remove(path);
    pass();
  }
  void between(int) override { let_threads_run(); }
  FileIo io{loop};
  std::string path =
      (std::filesystem::temp_directory_path() / ("tandem_cancel_" + std::to_string(getpid())))
          .string();
};

// The timer never fires: it is cancelled from outside, which is no stop.
struct AsioTimer : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    const StopToken stop = co_await current_stop_token();
    const asio::error_code error = co_await timer.async_wait(use_task_result(stop));
    EXPECT_EQ(error, asio::error::operation_aborted);
    pass();
  }
  void between(int step) override {
    if (step == 8) {
      timer.cancel();
    }
  }
  asio::steady_timer timer{loop.reactor(), 1h};
};

// A net on which one frame comes when the scenario says so.
struct Receives : Scenario {
  using Scenario::Scenario;
  struct OneFrame : NetBackend {
    [[nodiscard]] std::uint32_t rank() const noexcept override { return 0; }
    [[nodiscard]] std::uint32_t world() const noexcept override { return 2; }
    void submit(NetOp& op) override { waiting = &op; }
    bool cancel(NetOp&) noexcept override { return std::exchange(waiting, nullptr) != nullptr; }
    void abort(std::uint32_t) override {}
    void send_heartbeat(std::uint32_t, std::size_t, std::uint16_t) override {}
    [[nodiscard]] PeerHeartbeats heartbeats_of(std::uint32_t) const noexcept override { return {}; }
    NetOp* waiting = nullptr;
  };
  Task<> run() override {
    std::byte into[8];
    EXPECT_EQ(co_await net.recv(1, 0, into, co_await current_stop_token()), 3U);
    pass();
  }
  void between(int step) override {
    if (NetOp* op = step == 5 ? std::exchange(backend->waiting, nullptr) : nullptr) {
      op->end = NetOp::End::kDone;
      op->moved = 3;
      loop.post(op->resume);
    }
  }
  OneFrame* backend = new OneFrame;
  Net net{std::unique_ptr<NetBackend>(backend)};
};

// Waiting for a kernel of some milliseconds; the kernel goes on when no task waits any more.
struct DeviceEvents : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    stream.launch("kernel", {.seconds = 4e-3}, [](void*) {});
    const DeviceEvent done = stream.record();
    co_await done.wait(co_await current_stop_token());
    pass();
  }
  Task<> finish() override {
    for (int i = 0; i < 8; ++i) {
      co_await tick();
    }
  }
  SimDevice device{loop, {}};
  DeviceStream stream = device.stream("stream");
};

}  // namespace tandem::test
