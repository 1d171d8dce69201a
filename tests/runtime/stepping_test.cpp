// The interface that the simulator drives: loops in steps, and pools without threads.
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/completion.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(RunReady, RunsWhatIsReadyAndReturns) {
  ManualClock clock(ManualClock::Idle::kWait);
  EventLoop loop({.name = "stepped", .clock = &clock});
  Scope scope(loop);
  std::vector<int> log;
  const auto task = [](std::vector<int>* out, int first) -> Task<> {
    out->push_back(first);
    co_await yield();
    out->push_back(first + 1);
    co_await sleep_for(5ms);
    out->push_back(first + 2);
  };
  scope.spawn("a", task, &log, 10);
  scope.spawn("b", task, &log, 20);
  EXPECT_EQ(loop.next_deadline(), TimePoint::max());
  EXPECT_EQ(loop.run_ready(1), 1U);
  EXPECT_EQ(log, (std::vector<int>{10}));
  EXPECT_EQ(loop.run_ready(100), 3U);
  EXPECT_EQ(log, (std::vector<int>{10, 20, 11, 21}));
  EXPECT_EQ(loop.run_ready(100), 0U);
  EXPECT_EQ(loop.next_deadline(), TimePoint(5ms));
  clock.advance(5ms);
  EXPECT_EQ(loop.run_ready(100), 2U);
  EXPECT_EQ(scope.running(), 0U);
  EXPECT_EQ(EventLoop::current_or_null(), nullptr);
}

TEST(RunReady, ALoopThatSleepsIsReadyOnceItIsWoken) {
  ManualClock clock(ManualClock::Idle::kWait);
  EventLoop loop({.name = "stepped", .clock = &clock});
  Scope scope(loop);
  Completion<int> done(loop);
  int seen = 0;
  scope.spawn(
      "waits", [](Completion<int>* to, int* out) -> Task<> { *out = co_await *to; }, &done, &seen);
  loop.fall_asleep();
  EXPECT_EQ(loop.run_ready(100), 1U) << "with something to do it does not sleep";
  loop.fall_asleep();
  EXPECT_FALSE(loop.has_ready_ops());
  loop.stop_sleeping();
  EXPECT_FALSE(loop.has_ready_ops());
  loop.fall_asleep();
  done.set_value(7);
  EXPECT_TRUE(loop.has_ready_ops());
  EXPECT_EQ(loop.run_ready(100), 1U);
  EXPECT_EQ(seen, 7);
  loop.fall_asleep();  // and it ends asleep
}

// Takes one chunk with each of two workers, in turn.
struct TwoWorkers : PoolDriver {
  void work_there(CpuPool& pool) override {
    CpuPool::Worker workers[2] = {CpuPool::Worker(pool), CpuPool::Worker(pool)};
    while (workers[0].join()) {
      const bool both = workers[1].join();
      while (workers[0].run_chunk() && both && workers[1].run_chunk()) {
      }
      workers[0].leave();
      if (both) {
        workers[1].leave();
      }
    }
  }
};

TEST(PoolDriver, RunsChunksOnTheLoopsThread) {
  EventLoop loop;
  TwoWorkers driver;
  CpuPool pool(loop, {.threads = 2, .driver = &driver});
  EXPECT_EQ(pool.threads(), 2);
  std::vector<std::size_t> chunks;
  loop.run(
      [](CpuPool* p, std::vector<std::size_t>* out) -> Task<> {
        co_await p->for_chunks(5, [out](std::size_t chunk) { out->push_back(chunk); });
        EXPECT_EQ(co_await p->run([] { return 7; }), 7);
        EXPECT_THROW(co_await p->for_chunks(
                         3, [](std::size_t) { throw std::runtime_error("broken chunk"); }),
                     std::runtime_error);
      },
      &pool, &chunks);
  EXPECT_EQ(chunks, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace tandem
