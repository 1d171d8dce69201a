// Runs that end at once, and a loop inside a foreign one: timers, sockets and files go on all the
// same; and durations without end.
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <asio/local/connect_pair.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/post.hpp>
#include <asio/write.hpp>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "runtime/actor.hpp"
#include "runtime/first_of.hpp"
#include "runtime/io/asio_await.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/select.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/watchdog.hpp"
#include "runtime/with_deadline.hpp"
#include "tests/runtime/io/file_backends.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using Socket = asio::local::stream_protocol::socket;

struct Progress {
  bool timer = false;
  bool socket = false;
  bool file = false;
  [[nodiscard]] bool all() const { return timer && socket && file; }
};

Task<> waits_for_time(Progress* progress) {
  co_await sleep_for(2ms);
  progress->timer = true;
}
Task<> waits_for_socket(Progress* progress) {
  Socket a(EventLoop::current().reactor());
  Socket b(EventLoop::current().reactor());
  asio::local::connect_pair(a, b);
  char byte = 'x';
  const auto later = [](Socket* to) -> Task<> {
    co_await sleep_for(1ms);
    (void)co_await asio::async_write(*to, asio::buffer("y", 1), use_task);
  };
  co_await with_scope(
      [](Scope& scope, Socket* to, Socket* from, char* into, auto write) -> Task<> {
        scope.spawn("write", write, to);
        (void)co_await from->async_read_some(asio::buffer(into, 1), use_task);
      },
      &a, &b, &byte, later);
  progress->socket = byte == 'y';
}
Task<> waits_for_file(FileIo* io, Progress* progress) {
  for (int i = 0; i < 5; ++i) {
    const IoFile file = co_await io->open("/proc/self/exe", OpenMode::kRead);
    std::byte some[4096];
    (void)co_await io->read(file, 0, some);
  }
  progress->file = true;
}

class ShortRuns : public testing::TestWithParam<FileIo::Backend> {
 protected:
  ShortRuns() {
    scope.spawn("timer", &waits_for_time, &progress);
    scope.spawn("socket", &waits_for_socket, &progress);
    scope.spawn("file", &waits_for_file, &io, &progress);
  }
  template <class Step>
  void repeat(Step step) {
    for (int i = 0; i < 20'000 && !progress.all(); ++i) {
      step();
      std::this_thread::sleep_for(100us);
    }
    EXPECT_TRUE(progress.timer);
    EXPECT_TRUE(progress.socket);
    EXPECT_TRUE(progress.file);
    loop.run(&Scope::join, &scope);
  }
  EventLoop loop;
  FileIo io{loop, {.backend = GetParam()}};
  Scope scope{loop, "work"};
  Progress progress;
};

TEST_P(ShortRuns, ARunThatEndsAtOnceLooksAround) {
  repeat([this] { loop.run([]() -> Task<> { co_return; }); });
}

TEST_P(ShortRuns, RunReadyDoesEverythingThatIsReady) {
  repeat([this] { (void)loop.run_ready(10); });
}

INSTANTIATE_TEST_SUITE_P(BackEnds, ShortRuns,
                         testing::Values(FileIo::Backend::kAuto, FileIo::Backend::kThreads),
                         backend_of);

// A foreign loop that only ever waits for the descriptor: without it this would wait for ever.
TEST_P(ShortRuns, ADescriptorSaysWhenThereIsSomethingToDo) {
  bool posted = false;  // used on the loop's thread
  std::jthread other([&] {
    std::this_thread::sleep_for(5ms);
    scope.spawn("file", &waits_for_file, &io, &progress);
    loop.post([&] {
      scope.spawn("timer", &waits_for_time, &progress);
      posted = true;
    });
  });
  pollfd watched{.fd = loop.ready_descriptor(), .events = POLLIN, .revents = 0};
  int rounds = 0;
  while (!posted || !progress.all() || scope.running() > 0) {
    ASSERT_EQ(::poll(&watched, 1, 30'000), 1);
    (void)loop.run_ready(1);  // one at a time: what is left over makes it ready, too
    ++rounds;
  }
  other.join();
  while (loop.run_ready(100) > 0) {
  }
  for (int i = 0; i < 10 && ::poll(&watched, 1, 0) == 1; ++i) {  // late wakes
    (void)loop.run_ready(100);
  }
  EXPECT_EQ(::poll(&watched, 1, 0), 0) << "it is ready though nothing is to do";
  EXPECT_GT(rounds, 5);
  loop.post([] {});
  EXPECT_EQ(::poll(&watched, 1, 30'000), 1);
  EXPECT_EQ(loop.run_ready(100), 1U);
}

TEST(ForeignLoop, ARunLeavesTheDescriptorGood) {
  EventLoop loop;
  pollfd watched{.fd = loop.ready_descriptor(), .events = POLLIN, .revents = 0};
  (void)loop.run_ready(100);
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  bool called = false;
  std::jthread([&] { loop.post([&] { called = true; }); }).join();
  for (int i = 0; i < 3 && !called; ++i) {
    ASSERT_EQ(::poll(&watched, 1, 30'000), 1);
    (void)loop.run_ready(100);
  }
  EXPECT_TRUE(called);
}

// Whatever a plain handler throws, the descriptor goes on saying that there is something to do.
TEST(ForeignLoop, AHandlerThatThrowsLeavesTheDescriptorGood) {
  EventLoop loop;
  pollfd watched{.fd = loop.ready_descriptor(), .events = POLLIN, .revents = 0};
  int came = 0;
  for (int i = 0; i < 20; ++i) {
    asio::post(loop.reactor(), [] { throw std::runtime_error("plain"); });
    loop.post([&] { ++came; });
    int thrown = 0;
    for (const int want = came + 1; came < want || thrown == 0;) {
      ASSERT_EQ(::poll(&watched, 1, 30'000), 1);
      try {
        (void)loop.run_ready(100);
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    }
    EXPECT_EQ(thrown, 1);
  }
}

TEST(LongestTimes, NeverEnd) {
  EventLoop loop;
  const auto ends = [](auto duration) -> Task<bool> {
    const auto long_one = [](decltype(duration) time) -> Task<int> {
      co_await sleep_for(time, co_await current_stop_token());
      co_return 1;
    };
    const auto short_one = []() -> Task<int> {
      co_await sleep_for(2ms, co_await current_stop_token());
      co_return 2;
    };
    const auto first = co_await first_of(long_one(duration), short_one());
    co_return first.value == 1;
  };
  EXPECT_FALSE(loop.run(ends, Duration::max()));
  EXPECT_FALSE(loop.run(ends, Duration::max() - 1ns));
  EXPECT_FALSE(loop.run(ends, std::chrono::hours::max()));
  EXPECT_FALSE(loop.run(ends, std::chrono::duration<double>(1e300)));
  EXPECT_TRUE(loop.run(ends, Duration::min()));
  EXPECT_TRUE(loop.run(ends, std::chrono::hours::min()));
  EXPECT_EQ(loop.run([]() -> Task<int> {
    const auto now = []() -> Task<int> {
      co_await sleep_for(1ms);
      co_return 3;
    };
    const int first = co_await with_deadline(Duration::max(), now);
    co_return first + co_await with_deadline(std::chrono::hours::max(), now);
  }),
            6);
}

TEST(LongestTimes, AreTakenByChannelsAndClocks) {
  EventLoop loop;
  EXPECT_EQ(loop.run([]() -> Task<int> {
    Channel<int> channel(3);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(channel.try_send(int{i}));
    }
    int sum = (co_await channel.receive(std::chrono::hours::max())).value();
    sum += (co_await select(std::chrono::hours::max(), StopToken(), channel)).value().value;
    co_return sum + (co_await select(std::chrono::hours::max(), StopToken(),
                                     std::vector<Channel<int>*>{&channel}))
                        .value()
                        .value;
  }),
            3);
  ManualClock clock;
  clock.advance(Duration::max());
  clock.advance(Duration::max());
  EXPECT_EQ(clock.now(), TimePoint::max());
  EventLoop late({.clock = &clock});
  const Watchdog watchdog(late, {.limit = Duration::max(), .every = Duration::max()});
  late.run([]() -> Task<> { co_await yield(); });
}

struct Get {
  using Reply = int;
};
struct Slow : Actor<Slow, Get> {
  Task<int> handle(Get) {
    co_await sleep_for(2ms);
    co_return 1;
  }
};

TEST(LongestTimes, AnAskMayWaitForEver) {
  EventLoop loop;
  Scope scope(loop);
  Slow& slow = scope.start<Slow>();
  EXPECT_EQ(loop.run(
                [](Slow::AddressType to) -> Task<int> {
                  co_return co_await to.ask(Get{}, Duration::max()) +
                      co_await to.ask(Get{}, std::chrono::hours::max());
                },
                slow.address()),
            2);
  loop.run(&Scope::join, &scope);
}

TEST(LongestTimes, AManualClockDoesNotJumpToNever) {
  ManualClock clock;
  EventLoop loop({.name = "test", .clock = &clock});
  Scope scope(loop);
  scope.spawn("for ever", []() -> Task<> {
    co_await sleep_for(Duration::max(), co_await current_stop_token());
  });
  loop.run([]() -> Task<> { co_await sleep_for(1h); });
  EXPECT_EQ(scope.running(), 1U);
  EXPECT_EQ(clock.now(), TimePoint(1h));
  scope.request_stop();
  loop.run(&Scope::join, &scope);
}

}  // namespace
}  // namespace tandem
