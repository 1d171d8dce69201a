// Calls that other threads may make on a loop: post, spawn, close, ask, and send before the start;
// and the calls that are refused in plain words.
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/ask_future.hpp"
#include "runtime/completion.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Add {
  int value;
};
struct Sum {
  using Reply = int;
};
struct Refused {
  using Reply = void;
};
struct Adder : Actor<Adder, Add, Sum, Refused> {
  Adder() : Actor("adder", 1'000'000) {}
  void handle(Add m) { sum += m.value; }
  int handle(Sum) { return sum; }
  void handle(Refused, ReplyTo<Refused> reply) {
    reply.fail(std::make_exception_ptr(std::out_of_range("no")));
  }
  int sum = 0;
};

// A loop on a thread of its own.
struct Elsewhere {
  Elsewhere() {
    thread = std::thread([this] {
      loop.run(
          [](std::atomic<bool>* end) -> Task<> {
            while (!*end) {
              co_await sleep_for(1ms);
            }
          },
          &ended);
    });
    while (!loop.is_running()) {
      std::this_thread::yield();
    }
  }
  ~Elsewhere() { end(); }
  void end() {
    ended = true;
    if (thread.joinable()) {
      thread.join();
    }
  }
  EventLoop loop{{.name = "elsewhere"}};
  std::atomic<bool> ended{false};
  std::thread thread;
};

TEST(Entry, APostedFunctionRunsOnTheLoop) {
  Elsewhere there;
  std::atomic<int> calls{0};
  for (int i = 0; i < 1000; ++i) {
    there.loop.post([&] { calls += there.loop.on_loop_thread() ? 1 : 0; });
  }
  while (calls < 1000) {
    std::this_thread::yield();
  }
}

TEST(Entry, WhatAPostedFunctionThrowsComesOutOfRun) {
  EventLoop loop;
  loop.post([] { throw std::out_of_range("posted"); });
  const auto nap = []() -> Task<> { co_await sleep_for(10ms); };
  EXPECT_THROW(loop.run(nap), std::out_of_range);
  loop.run([]() -> Task<> { co_await sleep_for(50ms); });  // and the nap goes on, to its end
}

Task<> count(std::atomic<int>* ran, std::atomic<int>* elsewhere, EventLoop* home) {
  *elsewhere += EventLoop::current_or_null() == home ? 0 : 1;
  co_await yield();
  ++*ran;
}

TEST(Entry, TasksAreSpawnedFromOtherThreads) {
  EventLoop loop;
  Scope scope(loop, "spawned");
  std::atomic<int> ran{0};
  std::atomic<int> elsewhere{0};
  constexpr int kEach = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        scope.spawn("count", &count, &ran, &elsewhere, &loop);
      }
    });
  }
  loop.run(
      [](std::atomic<int>* n) -> Task<> {
        while (*n < kEach) {
          co_await yield();
        }
      },
      &ran);
  for (std::thread& thread : threads) {
    thread.join();
  }
  loop.run(&Scope::join, &scope);  // waits for those on their way, too
  EXPECT_EQ(ran, 3 * kEach);
  EXPECT_EQ(elsewhere, 0);
}

TEST(Entry, AnActorIsClosedFromAnotherThread) {
  EventLoop loop;
  Scope scope(loop, "actors");
  Adder adder;
  adder.start(scope);
  std::thread other([&] {
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(adder.address().try_send(Add{1}), SendResult::kSent);
    adder.close();
    EXPECT_EQ(adder.address().try_send(Add{1}), SendResult::kClosed);
  });
  loop.run(&Scope::join, &scope);
  other.join();
  EXPECT_EQ(adder.sum, 1);
}

TEST(Entry, AThreadAsksWithAFuture) {
  Elsewhere there;
  std::optional<Scope> scope;
  std::optional<Adder> adder;
  std::atomic<bool> started{false};
  there.loop.post([&] {
    scope.emplace(there.loop, Name("actors"));
    adder.emplace();
    adder->start(*scope);
    started = true;
  });
  while (!started) {
    std::this_thread::yield();
  }
  EXPECT_EQ(adder->address().try_send(Add{4}), SendResult::kSent);
  EXPECT_EQ(ask_future(adder->address(), Sum{}).get(), 4);
  EXPECT_THROW(ask_future(adder->address(), Refused{}).get(), std::out_of_range);
  adder->close();
  EXPECT_THROW(ask_future(adder->address(), Sum{}).get(), ActorClosed);
  there.end();
  there.loop.run(&Scope::join, &*scope);
}

TEST(Entry, WhatThreadsSendBeforeTheStartIsKept) {
  for (int round = 0; round < 20; ++round) {
    EventLoop loop;
    Scope scope(loop, "actors");
    Adder adder;
    std::atomic<int> sent{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, to = adder.address()] {
        while (!go) {
        }
        for (int i = 0; i < 3000; ++i) {
          sent += to.try_send(Add{1}) == SendResult::kSent ? 1 : 0;
        }
      });
    }
    go = true;
    std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
    adder.start(scope);
    for (std::thread& thread : threads) {
      thread.join();
    }
    adder.close();
    loop.run(&Scope::join, &scope);
    ASSERT_EQ(adder.sum, sent);
  }
}

TEST(Entry, ALoopRunsOnOneThreadAfterAnother) {
  EventLoop loop;
  FileIo io(loop);
  CpuPool pool(loop, {.threads = 1});
  for (int i = 0; i < 40; ++i) {
    std::thread thread([&] {
      loop.run(
          [](FileIo* files, CpuPool* workers) -> Task<> {
            const IoFile file = co_await files->open("/proc/self/exe", OpenMode::kRead);
            char magic[4] = {};
            (void)co_await files->read(file, 0, std::as_writable_bytes(std::span(magic)));
            EXPECT_EQ(magic[1], 'E');
            co_await workers->run([] {});
            co_await sleep_for(100us);
          },
          &io, &pool);
    });
    thread.join();
  }
}

struct Parts {
  CpuPool* pool;
  ComputeLane* lane;
  FileIo* files;
};
Task<> awaits(Parts parts, int which) {
  if (which == 0) {
    co_await parts.pool->run([] {});
  } else if (which == 1) {
    co_await parts.lane->run([] {});
  } else {
    (void)co_await parts.files->open("/dev/null", OpenMode::kRead);
  }
}

TEST(EntryDeath, PartsOfAnotherLoopAreRefusedByName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int which = 0; which < 3; ++which) {
    EXPECT_DEATH(
        {
          EventLoop home({.name = "home"});
          CpuPool pool(home, {.threads = 1});
          ComputeLane lane(home);
          FileIo files(home);
          EventLoop mine;
          mine.run(&awaits, Parts{&pool, &lane, &files}, which);
        },
        "check failed.*the loop that it was made for");
  }
}

TEST(EntryDeath, ACompletionIsCompletedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop({.name = "one"});
        Completion<int> done(loop);
        done.set_value(1);
        done.set_value(2);
      },
      "one: a completion on this loop is completed once");
}

TEST(EntryDeath, PostingFromAnotherThreadIsRefusedByName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Elsewhere there;
        Op op([](Op&) noexcept {});
        there.loop.post(op);
      },
      "elsewhere: this belongs to the loop's thread");
}

}  // namespace
}  // namespace tandem
