// Sends to a mailbox without a credit: the policies; control messages; metrics.
#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/slow_actors.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using namespace test;

class MailboxFullTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(alive.load(), 0); }
};

// ---- reject ------------------------------------------------------------------------------------
TEST_F(MailboxFullTest, RejectFailsAtOnce) {
  MailboxWorld<Slow<WhenFull::kReject>> world({.credits = 2});
  const auto address = world.actor.address();
  EXPECT_EQ(address.try_send(Note{1}), SendResult::kSent);
  EXPECT_EQ(address.try_send(Note{2}), SendResult::kSent);
  EXPECT_EQ(address.try_send(Note{3}), SendResult::kFull);
  world.run_for(1ms);  // the actor takes the first
  EXPECT_EQ(address.try_send(Note{3}), SendResult::kSent);
  std::string sent;
  std::string asked;
  world.loop.run(&send_fails<MailboxFull, decltype(address), Note>, address, Note{4}, &sent);
  EXPECT_EQ(world.loop.now().time_since_epoch(), 1ms);
  EXPECT_EQ(sent,
            "[actor] Note was refused by slow: 2 messages wait there, as many as it takes; send "
            "fewer, or later");
  world.loop.run(&ask_fails<MailboxFull, decltype(address)>, address, &asked);
  EXPECT_NE(asked.find("Read was refused by slow"), std::string::npos);
  EXPECT_EQ(address.metrics().rejected, 3U);
  EXPECT_EQ(address.metrics().dropped, 0U);
}

// ---- drop-oldest -------------------------------------------------------------------------------
TEST_F(MailboxFullTest, DropOldestKeepsTheNewestAndItsBound) {
  MailboxWorld<Slow<WhenFull::kDropOldest>> world({.credits = 3});
  const auto address = world.actor.address();
  world.inside([&] {
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(address.try_send(Note{i}), SendResult::kSent);
      EXPECT_LE(address.depth(), 3U);
    }
    EXPECT_EQ(alive.load(), 3);
  });
  EXPECT_EQ(address.metrics().dropped, 7U);
  world.run_for(10s);
  EXPECT_EQ(world.actor.notes, (std::vector<int>{7, 8, 9}));
}

TEST_F(MailboxFullTest, ADroppedRequestFailsItsAskerAndASendNeverWaits) {
  MailboxWorld<Slow<WhenFull::kDropOldest>> world({.credits = 2});
  const auto address = world.actor.address();
  std::string text;
  Scope askers(world.loop);
  EXPECT_EQ(address.try_send(Note{0}), SendResult::kSent);
  world.run_for(500ms);  // the actor is busy with the note, the request waits
  askers.spawn("asker", &ask_fails<MessageDropped, decltype(address)>, address, &text);
  world.run_for(1ms);
  world.loop.run(
      [](decltype(address) a) -> Task<> {
        const TimePoint start = EventLoop::current().now();
        for (int i = 1; i <= 4; ++i) {
          co_await a.send(Note{i});
        }
        EXPECT_EQ(EventLoop::current().now(), start);
      },
      address);
  world.run_for(10s);
  world.loop.run(&Scope::join, &askers);
  EXPECT_EQ(text,
            "[actor] Read was dropped by slow, whose mailbox was full and takes newer messages "
            "first; ask again");
  EXPECT_EQ(world.actor.notes, (std::vector<int>{0, 3, 4}));
}

struct Sink : Actor<Sink, Note> {
  static constexpr WhenFull kWhenFull = WhenFull::kDropOldest;
  Sink() : Actor("sink", MailboxOptions{.credits = 16}) {}
  void handle(Note m) {
    auto& before = last[static_cast<std::size_t>(m.value % 3)];
    ordered = ordered && m.value > before;
    before = m.value;
    deepest = std::max(deepest, address().depth());
    ++handled;
  }
  std::array<int, 3> last{-1, -1, -1};
  bool ordered = true;
  std::uint64_t deepest = 0;
  std::uint64_t handled = 0;
};

TEST_F(MailboxFullTest, DropOldestFromOtherThreadsLosesNoneUnseen) {
  constexpr int kEach = 20'000;
  EventLoop loop;
  Scope scope(loop);
  Sink sink;
  sink.start(scope);
  std::atomic<std::uint64_t> sent{0};
  std::atomic<int> left{3};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t, address = sink.address()] {
      for (int i = 0; i < kEach; ++i) {
        if (address.try_send(Note{3 * i + t}) == SendResult::kSent) {
          ++sent;
        }
      }
      --left;
    });
  }
  loop.run(
      [](std::atomic<int>* threads_left) -> Task<> {
        while (*threads_left > 0) {
          co_await yield();
        }
      },
      &left);
  for (std::thread& thread : threads) {
    thread.join();
  }
  sink.close();
  loop.run(&Scope::join, &scope);
  const MailboxMetrics metrics = sink.metrics();
  EXPECT_EQ(sink.handled + metrics.dropped, sent.load());
  EXPECT_EQ(sent.load() + metrics.rejected, 3U * kEach);
  EXPECT_TRUE(sink.ordered);
  EXPECT_LE(sink.deepest, 32U);
  EXPECT_EQ(metrics.depth, 0U);
}

// ---- coalesce ----------------------------------------------------------------------------------
TEST_F(MailboxFullTest, CoalescesIntoTheNewestThatFits) {
  MailboxWorld<Merging> world({.credits = 3});
  const auto address = world.actor.address();
  world.loop.run(
      [](decltype(address) a) -> Task<> {
        EXPECT_EQ(a.try_send(Note{10}), SendResult::kSent);
        EXPECT_EQ(a.try_send(Note{11}), SendResult::kSent);
        EXPECT_EQ(a.try_send(Note{20}), SendResult::kSent);
        EXPECT_EQ(a.try_send(Note{12}), SendResult::kSent);  // merged into 11
        const Note lvalue{21};
        EXPECT_EQ(a.try_send(lvalue), SendResult::kSent);
        EXPECT_EQ(a.try_send(Note{30}), SendResult::kFull);  // fits none
        EXPECT_EQ(a.depth(), 3U);
        EXPECT_EQ(a.metrics().coalesced, 2U);
        EXPECT_EQ(a.metrics().rejected, 1U);
        co_await a.send(Note{13});  // merged: no wait
        co_await a.send(Note{31});  // waits in the wait queue
        EXPECT_EQ(co_await a.ask(Read{}), 7);
      },
      address);
  EXPECT_EQ(world.actor.notes, (std::vector<int>{10, 13, 21, 31}));
}

TEST_F(MailboxFullTest, CoalescesFromOtherThreadsAndCountsEach) {
  constexpr int kEach = 20'000;
  MailboxWorld<Merging> world({.credits = 4});
  std::atomic<int> sent{0};
  std::atomic<int> left{2};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t, address = world.actor.address()] {
      for (int i = 0; i < kEach; ++i) {
        if (address.try_send(Note{10 * t + i % 10}) == SendResult::kSent) {
          ++sent;
        }
      }
      --left;
    });
  }
  world.loop.run(
      [](std::atomic<int>* threads_left) -> Task<> {
        while (*threads_left > 0) {
          co_await yield();
        }
      },
      &left);
  for (std::thread& thread : threads) {
    thread.join();
  }
  world.actor.close();
  world.loop.run(&Scope::join, &world.scope);
  EXPECT_EQ(world.actor.times, sent.load());
  EXPECT_EQ(world.actor.notes.size() + world.actor.metrics().coalesced,
            static_cast<std::size_t>(sent.load()));
}

// ---- control messages
TEST_F(MailboxFullTest, ControlMessagesOvertakeAndAreNeverRefused) {
  MailboxWorld<Slow<WhenFull::kReject>> world({.credits = 1});
  const auto address = world.actor.address();
  EXPECT_EQ(address.try_send(Note{1}), SendResult::kSent);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(address.try_send(Urgent{i}), SendResult::kSent);
  }
  EXPECT_EQ(address.depth(), 1U);
  EXPECT_EQ(address.try_send(Note{2}), SendResult::kFull);
  const int before_notes = world.loop.run(
      [](decltype(address) a) -> Task<int> { co_return co_await a.ask(Check{}); }, address);
  EXPECT_EQ(before_notes, 10);
  world.run_for(5s);
  EXPECT_EQ(world.actor.notes.size(), 11U);
  EXPECT_EQ(world.actor.notes.front(), 1000);
  EXPECT_EQ(world.actor.notes.back(), 1);
}

TEST_F(MailboxFullTest, AClosedActorTakesControlMessagesUntilItHasEnded) {
  MailboxWorld<Slow<WhenFull::kWait>> world({.credits = 4});
  const auto address = world.actor.address();
  EXPECT_EQ(address.try_send(Note{1}), SendResult::kSent);
  world.run_for(500ms);
  world.actor.close();
  EXPECT_EQ(address.try_send(Note{2}), SendResult::kClosed);
  EXPECT_EQ(address.try_send(Urgent{1}), SendResult::kSent);
  world.loop.run(&Scope::join, &world.scope);
  EXPECT_EQ(world.actor.notes, (std::vector<int>{1, 1001}));
  EXPECT_EQ(address.try_send(Urgent{2}), SendResult::kClosed);
}

// ---- metrics
TEST_F(MailboxFullTest, MeasuresDepthAndWaitingTimeWhenAsked) {
  MailboxWorld<Slow<WhenFull::kWait>> world({.credits = 8});
  const auto address = world.actor.address();
  EXPECT_EQ(address.try_send(Note{0}), SendResult::kSent);
  EXPECT_EQ(address.metrics().depth, 1U);
  world.run_for(500ms);
  EXPECT_EQ(address.metrics().waited, 0U);  // off
  world.actor.measure(true);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(address.try_send(Note{i}), SendResult::kSent);
  }
  world.run_for(10s);
  const MailboxMetrics metrics = world.actor.metrics();
  EXPECT_EQ(metrics.depth, 0U);
  EXPECT_EQ(metrics.depth_max, 3U);
  EXPECT_EQ(metrics.waited, 3U);
  EXPECT_EQ(metrics.waited_total, 500ms + 1500ms + 2500ms);
  EXPECT_EQ(metrics.waited_max, 2500ms);
  world.actor.measure(false);
  EXPECT_EQ(address.try_send(Note{4}), SendResult::kSent);
  world.run_for(10s);
  EXPECT_EQ(world.actor.metrics().waited, 3U);
}

TEST_F(MailboxFullTest, TheTimeInLineCountsAsWaiting) {
  MailboxWorld<Slow<WhenFull::kWait>> world({.credits = 1, .measure = true});
  world.run_for(1s);
  const auto address = world.actor.address();
  Scope senders(world.loop);
  for (int i = 0; i < 3; ++i) {
    senders.spawn(
        "sender", [](Address<Note> a) -> Task<> { co_await a.send(Note{1}); },
        Address<Note>(address));
  }
  world.loop.run(&Scope::join, &senders);
  world.run_for(10s);
  EXPECT_EQ(address.metrics().waited_total, 3s);
  EXPECT_EQ(address.metrics().waited_max, 2s);
  EXPECT_EQ(address.metrics().depth_max, 1U);
}

// ---- threads that run no loop
struct Letter {
  int sender;
  int value;
};
struct Gather : Actor<Gather, Letter> {
  explicit Gather(std::uint32_t credits, int close_after = 0)
      : Actor("gather", credits), left(close_after) {}
  void handle(Letter m) {
    most = std::max(most, address().depth());
    in_order = in_order && values[static_cast<std::size_t>(m.sender)] == m.value;
    ++values[static_cast<std::size_t>(m.sender)];
    if (--left == 0) {
      close();
    }
  }
  std::array<int, 4> values{};
  bool in_order = true;
  std::uint64_t most = 0;
  int left;
};

void send_from_threads(Gather& actor, std::vector<Address<Letter>> addresses, int each) {
  EventLoop loop;
  Scope scope(loop);
  actor.left = each * static_cast<int>(addresses.size());
  actor.start(scope);
  std::vector<std::thread> threads;
  for (int sender = 0; sender < static_cast<int>(addresses.size()); ++sender) {
    threads.emplace_back([sender, each, address = addresses[static_cast<std::size_t>(sender)]] {
      for (int i = 0; i < each; ++i) {
        EXPECT_EQ(address.send_blocking(Letter{sender, i}), SendResult::kSent);
      }
    });
  }
  loop.run(&Scope::join, &scope);
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(SendBlocking, WaitsForRoomAndKeepsTheOrderOfEachThread) {
  Gather actor(4);
  // Each sends one more than is counted; what is accepted of those before the actor closes is out
  // of the count.
  send_from_threads(actor, {actor.address(), actor.address(), actor.address()}, 3000);
  EXPECT_TRUE(actor.in_order);
  EXPECT_LE(actor.most, 4U);
  EXPECT_EQ(actor.values, (std::array{3000, 3000, 3000, 0}));
}

TEST(SendBlocking, WaitsForACreditOfItsShare) {
  Gather actor(3);
  const auto share = actor.address().with_credits(2);
  send_from_threads(actor, {share, share, actor.address(), share}, 2000);
  EXPECT_TRUE(actor.in_order);
  EXPECT_EQ(actor.values, (std::array{2000, 2000, 2000, 2000}));
}

TEST(SendBlocking, TheEndOfTheActorWakesAThread) {
  EventLoop loop;
  Scope scope(loop);
  Gather actor(2, 50);
  actor.start(scope);
  std::thread thread([address = actor.address()] {
    SendResult result = SendResult::kSent;
    for (int i = 0; result == SendResult::kSent; ++i) {
      result = address.send_blocking(Letter{0, i});
    }
    EXPECT_EQ(result, SendResult::kClosed);
  });
  loop.run(&Scope::join, &scope);
  thread.join();
  EXPECT_GE(actor.values[0], 50);
}

// The loop does not run when the actor ends, so what the thread posted there is not looked at.
TEST(SendBlocking, TheEndOfTheActorWakesAThreadWithoutTheLoop) {
  for (int round = 0; round < 50; ++round) {
    EventLoop loop;
    Scope scope(loop);
    Gather actor(1);
    actor.start(scope);
    ASSERT_EQ(actor.address().try_send(Letter{0, 0}), SendResult::kSent);
    std::atomic<bool> began{false};
    std::thread thread([&began, address = actor.address()] {
      began = true;
      EXPECT_EQ(address.send_blocking(Letter{0, 1}), SendResult::kClosed);
    });
    while (!began) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(round * 20us);
    actor.close();
    thread.join();
    loop.run(&Scope::join, &scope);
  }
}

TEST(SendBlocking, SaysFullWhereNobodyWouldEverTake) {
  Gather actor(1);
  const auto address = actor.address();
  EXPECT_EQ(address.send_blocking(Letter{0, 0}), SendResult::kSent);
  EXPECT_EQ(address.send_blocking(Letter{0, 1}), SendResult::kFull);
  EXPECT_EQ(address.metrics().rejected, 1U);
  EXPECT_EQ(Address<Letter>().send_blocking(Letter{0, 0}), SendResult::kClosed);
}

}  // namespace
}  // namespace tandem
