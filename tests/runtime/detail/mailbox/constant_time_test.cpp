// However many messages wait, for one more to come and for one to go takes constant time: each of
// these took minutes where it walked a queue.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/build.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr int kCount = kDebugChecks ? 10'000 : 100'000;

struct Add {
  int value;
};
struct Counter : Actor<Counter, Add> {
  Counter() : Actor("counter", 4) {}
  void handle(Add m) { sum += m.value; }
  std::int64_t sum = 0;
};

Task<> send(Counter::AddressType to, int value) {
  co_await to.send(Add{value}, co_await current_stop_token());
}

struct ConstantTime : testing::Test {
  void spawn_senders(const Counter::AddressType& to, int value) {
    for (int i = 0; i < kCount; ++i) {
      senders.spawn("send", &send, to, value);
    }
  }
  EventLoop loop;
  Scope actors{loop, "actors"};
  Scope senders{loop, "senders"};
};

// The second share's wait behind all of the first's.
TEST_F(ConstantTime, SendersOfTwoSharesTakeTurns) {
  Counter& counter = actors.start<Counter>();
  spawn_senders(counter.address().with_credits(1), 1);
  spawn_senders(counter.address().with_credits(1), 10);
  loop.run(&Scope::join, &senders);
  loop.run(&Scope::join, &actors);
  EXPECT_EQ(counter.sum, std::int64_t{kCount} * 11);
}

TEST_F(ConstantTime, SendersOfManySharesAreStopped) {
  struct Never : Actor<Never, Add> {
    Never() : Actor("never", 1'000'000) {}
    Task<> handle(Add) {
      const StopToken stop = co_await current_stop_token();
      co_await sleep_for(1h, stop);
    }
  };
  Never& never = actors.start<Never>();
  for (int share = 0; share < 100; ++share) {
    const auto mine = never.address().with_credits(1);
    for (int i = 0; i < kCount / 100; ++i) {
      senders.spawn(
          "send",
          [](Never::AddressType to) -> Task<> {
            co_await to.send(Add{1}, co_await current_stop_token());
          },
          mine);
    }
  }
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  EXPECT_EQ(senders.running(), static_cast<std::size_t>(kCount) - 101);  // one is handled
  senders.request_stop();
  loop.run(&Scope::join, &senders);
  actors.request_stop();
  loop.run(&Scope::join, &actors);
}

struct Merging : Actor<Merging, Add> {
  static constexpr WhenFull kWhenFull = WhenFull::kCoalesce;
  static bool coalesce(Add& waiting, Add&& newer) {
    waiting.value += newer.value;
    return true;
  }
  explicit Merging(std::uint32_t room) : Actor("merging", room) {}
  void handle(Add m) {
    sum += m.value;
    ++handled;
  }
  std::int64_t sum = 0;
  int handled = 0;
};

TEST_F(ConstantTime, MessagesAreMergedIntoALongQueue) {
  Merging& merging = actors.start<Merging>(std::uint32_t{kCount});
  const auto to = merging.address();
  loop.run(
      [](Merging::AddressType target) -> Task<> {
        for (int i = 0; i < 2 * kCount; ++i) {
          EXPECT_EQ(target.try_send(Add{1}), SendResult::kSent);
        }
        co_return;
      },
      to);
  EXPECT_EQ(to.metrics().coalesced, static_cast<std::uint64_t>(kCount));
  loop.run(&Scope::join, &actors);
  EXPECT_EQ(merging.sum, 2 * kCount);
  EXPECT_EQ(merging.handled, kCount);
}

}  // namespace
}  // namespace tandem
