// The compute lane and the CPU pool: order, values, failures, lifetimes, determinism.
#include <atomic>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

TEST(ComputeLane, RunsInOrderOnItsOneThread) {
  EventLoop loop;
  ComputeLane lane(loop, "lane");
  Scope scope(loop);
  std::vector<int> order;
  std::set<std::thread::id> threads;
  for (int i = 0; i < 100; ++i) {
    scope.spawn(
        "job",
        [](ComputeLane* l, int id, std::vector<int>* out,
           std::set<std::thread::id>* seen) -> Task<> {
          auto job = [id, out, seen] {
            out->push_back(id);
            seen->insert(std::this_thread::get_id());
          };
          co_await l->run(job);
        },
        &lane, i, &order, &threads);
  }
  loop.run(&Scope::join, &scope);
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(threads.size(), 1U);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0U);
}

TEST(ComputeLane, GivesValuesAndExceptionsBack) {
  EventLoop loop;
  ComputeLane lane(loop);
  loop.run(
      [](ComputeLane* l) -> Task<> {
        auto boxed = std::make_unique<int>(3);
        const auto result =
            co_await l->run([b = std::move(boxed)]() mutable { return std::move(b); });
        EXPECT_EQ(*result, 3);
        bool caught = false;
        try {
          co_await l->run([] { throw std::out_of_range("lane"); });
        } catch (const std::out_of_range&) {
          caught = true;
        }
        EXPECT_TRUE(caught);
        EXPECT_EQ(co_await l->run([] { return 1; }), 1);
      },
      &lane);
}

TEST(ComputeLane, CountsItsBusyTimeBeforeTheAwaitReturns) {
  EventLoop loop;
  ComputeLane lane(loop);
  loop.run(
      [](ComputeLane* l) -> Task<> {
        co_await l->run([] { std::this_thread::sleep_for(20ms); });
        EXPECT_GE(l->busy_s(), 0.019);
        EXPECT_LT(l->busy_s(), 5.0);
      },
      &lane);
}

TEST(ComputeLane, TheLoopGoesOnWhileItComputes) {
  EventLoop loop;
  ComputeLane lane(loop);
  Scope scope(loop);
  std::atomic<bool> release{false};
  bool seen = false;
  scope.spawn(
      "lane",
      [](ComputeLane* l, std::atomic<bool>* go) -> Task<> {
        co_await l->run([go] {
          while (!*go) {
            std::this_thread::yield();
          }
        });
      },
      &lane, &release);
  scope.spawn(
      "loop",
      [](std::atomic<bool>* go, bool* out) -> Task<> {
        co_await yield();
        *out = true;
        *go = true;
      },
      &release, &seen);
  loop.run(&Scope::join, &scope);
  EXPECT_TRUE(seen);
}

TEST(CpuPool, RunsEachChunkOnce) {
  EventLoop loop;
  CpuPool pool(loop, {.threads = 3});
  for (const std::size_t count : {0U, 1U, 2U, 3U, 7U, 1000U}) {
    std::vector<std::atomic<int>> runs(count);
    loop.run(
        [](CpuPool* p, std::vector<std::atomic<int>>* r) -> Task<> {
          co_await p->for_chunks(r->size(), [r](std::size_t chunk) { ++(*r)[chunk]; });
        },
        &pool, &runs);
    for (const auto& one : runs) {
      EXPECT_EQ(one.load(), 1);
    }
  }
}

TEST(CpuPool, ResultsDoNotDependOnTheNumberOfThreads) {
  constexpr std::size_t kChunks = 64;
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 4}) {
    EventLoop loop;
    CpuPool pool(loop, {.threads = threads});
    std::vector<float> out(kChunks);
    loop.run(
        [](CpuPool* p, std::vector<float>* o) -> Task<> {
          co_await p->for_chunks(kChunks, [o](std::size_t chunk) {
            float sum = 0;
            for (int i = 1; i < 1000; ++i) {
              sum += 1.0F / static_cast<float>(i + static_cast<int>(chunk));
            }
            (*o)[chunk] = sum;
          });
        },
        &pool, &out);
    results.push_back(std::move(out));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(CpuPool, RethrowsTheLowestChunksExceptionAndStartsNoMore) {
  EventLoop loop;
  CpuPool pool(loop, {.threads = 2});
  std::atomic<int> started{0};
  const std::string text = loop.run(
      [](CpuPool* p, std::atomic<int>* count) -> Task<std::string> {
        try {
          co_await p->for_chunks(1'000'000, [count](std::size_t chunk) {
            ++*count;
            if (chunk >= 10) {
              throw std::runtime_error("chunk");
            }
          });
        } catch (const std::runtime_error& error) {
          co_return error.what();
        }
        co_return "";
      },
      &pool, &started);
  EXPECT_EQ(text, "chunk");
  EXPECT_LT(started.load(), 1000);
  // The pool is as good as new.
  EXPECT_EQ(
      loop.run([](CpuPool* p) -> Task<int> { co_return co_await p->run([] { return 4; }); }, &pool),
      4);
}

TEST(CpuPool, ServesManyJobsAtOnce) {
  EventLoop loop;
  CpuPool pool(loop, {.threads = 3});
  Scope scope(loop);
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 200; ++i) {
    scope.spawn(
        "job",
        [](CpuPool* p, std::atomic<std::int64_t>* s) -> Task<> {
          for (int k = 0; k < 5; ++k) {
            co_await p->for_chunks(7, [s](std::size_t) { ++*s; });
          }
        },
        &pool, &sum);
  }
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(sum.load(), 200 * 5 * 7);
}

TEST(Threads, DoWhatTheyWereGivenBeforeTheyDie) {
  EventLoop loop;
  Scope scope(loop);
  std::atomic<int> done{0};
  {
    CpuPool pool(loop, {.threads = 1});
    ComputeLane lane(loop);
    const auto work = [](auto* on, std::atomic<int>* count) -> Task<> {
      co_await on->run([count] {
        std::this_thread::sleep_for(1ms);
        ++*count;
      });
    };
    for (int i = 0; i < 10; ++i) {
      scope.spawn("pool", work, &pool, &done);
      scope.spawn("lane", work, &lane, &done);
    }
    loop.run([]() -> Task<> { co_await yield(); });  // all are queued
  }
  EXPECT_EQ(done, 20);
  loop.run(&Scope::join, &scope);
}

TEST(CpuPool, RunGivesValuesAndExceptionsBack) {
  EventLoop loop;
  CpuPool pool(loop, {.threads = 1, .background = true});
  EXPECT_EQ(pool.threads(), 1);
  loop.run(
      [](CpuPool* p) -> Task<> {
        EXPECT_EQ(co_await p->run([] { return std::string("text"); }), "text");
        bool caught = false;
        try {
          co_await p->run([] { throw std::out_of_range("pool"); });
        } catch (const std::out_of_range&) {
          caught = true;
        }
        EXPECT_TRUE(caught);
        co_await p->run([] { std::this_thread::sleep_for(5ms); });
        EXPECT_GE(p->busy_s(), 0.004);
      },
      &pool);
}

// Jobs at regular times, which the threads come to expect, then at any time: one that finds its
// thread neither looking nor woken hangs this.
TEST(Threads, MissNoJobHoweverTheyWait) {
  EventLoop loop;
  ComputeLane lane(loop);
  CpuPool pool(loop, {.threads = 2});
  const int ran = loop.run(
      [](ComputeLane* l, CpuPool* p) -> Task<int> {
        std::mt19937 random(7);
        std::atomic<int> count{0};
        const auto job = [&count] { ++count; };
        for (int i = 0; i < 600; ++i) {
          const int regular_us = 100 << (i / 100 % 2);
          const int us = i < 400 ? regular_us : static_cast<int>(random() % 300);
          const TimePoint until = Clock::real().now() + us * 1us;
          while (Clock::real().now() < until) {
          }
          co_await l->run(job);
          co_await p->run(job);
          co_await p->for_chunks(2, [&count](std::size_t) { ++count; });
        }
        co_return count.load();
      },
      &lane, &pool);
  EXPECT_EQ(ran, 600 * 4);
}

TEST(CpuPool, PinsItsThreadsAndRefusesForeignCores) {
  EventLoop loop;
  const int cpu = machine::affinity().back();
  CpuPool pool(loop, {.threads = 2, .cores = {cpu}});
  const std::vector<int> pinned = loop.run(
      [](CpuPool* p) -> Task<std::vector<int>> {
        co_return co_await p->run([] { return machine::affinity(); });
      },
      &pool);
  EXPECT_EQ(pinned, std::vector<int>{cpu});
  EXPECT_GT(machine::affinity().size() + 1, 1U);
  EXPECT_THROW(CpuPool(loop, {.threads = 1, .cores = {7999}}), Error);
}

}  // namespace
}  // namespace tandem
