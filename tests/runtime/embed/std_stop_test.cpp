// Stops from and for std::stop_token, askers that have given up, and addresses as keys.
#include "runtime/std_stop.hpp"

#include <deque>
#include <thread>
#include <unordered_map>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

Task<> until_stopped() { co_await sleep_for(1h, co_await current_stop_token()); }

TEST(StdStop, AStopOfAnotherThreadReachesAScope) {
  for (const bool before : {false, true}) {
    EventLoop loop;
    Scope scope(loop);
    std::stop_source source;
    if (before) {
      source.request_stop();
    }
    const StopFromStd from(source.get_token(), scope.stop_handle());
    scope.spawn("waits", &until_stopped);
    std::thread other([&] { source.request_stop(); });
    loop.run(&Scope::join, &scope);
    EXPECT_TRUE(scope.stop_requested());
    other.join();
  }
}

TEST(StdStop, AStdTokenIsStoppedWithAScope) {
  EventLoop loop;
  Scope scope(loop);
  const StdStop during(scope.stop_token());
  EXPECT_FALSE(during.token().stop_requested());
  scope.request_stop();
  EXPECT_TRUE(during.token().stop_requested());
  const StdStop afterwards(scope.stop_token());
  EXPECT_TRUE(afterwards.token().stop_requested());
  EXPECT_FALSE(StdStop(StopToken()).token().stop_requested());
}

TEST(StopCallbackLink, IsCalledWhereTheStopCameFirst) {
  struct Count : StopCallback {
    Count()
        : StopCallback([](StopCallback& self) noexcept { ++static_cast<Count&>(self).times; }) {}
    int times = 0;
  };
  StopSource source;
  Count before;
  source.token().link(before);
  source.request_stop();
  Count after;
  source.token().link(after);
  EXPECT_EQ(before.times, 1);
  EXPECT_EQ(after.times, 1);
}

// ---- an actor's point of view
struct Get {
  using Reply = int;
};
struct Slow : Actor<Slow, Get> {
  void handle(Get, ReplyTo<Get> reply) { waiting.push_back(std::move(reply)); }
  std::deque<ReplyTo<Get>> waiting;
};

TEST(ReplyToWanted, SaysWhetherTheAskerStillWaits) {
  ManualClock clock;
  EventLoop loop({.name = "test", .clock = &clock});
  Scope scope(loop);
  Slow& slow = scope.start<Slow>();
  Scope askers(loop);
  for (const Duration patience : {Duration(1s), Duration(1h)}) {
    askers.spawn(
        "asks",
        [](Slow::AddressType to, Duration limit) -> Task<> {
          try {
            EXPECT_EQ(co_await to.ask(Get{}, limit), 5);
          } catch (const DeadlineExceeded&) {
          }
        },
        slow.address(), patience);
  }
  ASSERT_EQ(slow.address().try_send(Get{}), SendResult::kSent);  // sent: no asker waits
  loop.run([]() -> Task<> { co_await sleep_for(10ms); });
  ASSERT_EQ(slow.waiting.size(), 3U);
  int wanted = 0;
  for (const ReplyTo<Get>& reply : slow.waiting) {
    wanted += reply.wanted() ? 1 : 0;
  }
  EXPECT_EQ(wanted, 2);
  loop.run([]() -> Task<> { co_await sleep_for(2s); });
  wanted = 0;
  for (ReplyTo<Get>& reply : slow.waiting) {
    if (reply.wanted()) {
      ++wanted;
      reply.send(5);
      EXPECT_FALSE(reply.wanted());
    }
  }
  EXPECT_EQ(wanted, 1);
  loop.run(&Scope::join, &askers);
  slow.waiting.clear();
  loop.run(&Scope::join, &scope);
}

TEST(AddressHash, AnAddressIsAKey) {
  EventLoop loop;
  Scope scope(loop);
  Slow& one = scope.start<Slow>();
  Slow& other = scope.start<Slow>();
  std::unordered_map<Address<Get>, int> book;
  book[one.address()] = 1;
  book[other.address()] = 2;
  EXPECT_EQ(book.size(), 2U);
  EXPECT_EQ(book[one.address().with_credits(1)], 1);  // the same actor
  loop.run(&Scope::join, &scope);
}

}  // namespace
}  // namespace tandem
