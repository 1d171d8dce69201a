// Shares of senders: exact bounds, and credits that come back however a message, its sender or its
// actor ends.
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

class MailboxShareTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(alive.load(), 0); }
};

// ---- credits of a sender
TEST_F(MailboxShareTest, AGreedySenderFillsItsShareOnly) {
  MailboxWorld<Slow<WhenFull::kWait>> world({.credits = 8});
  const auto all = world.actor.address();
  const auto greedy = all.with_credits(3);
  const Address<Note> narrow = greedy;  // the same share
  EXPECT_EQ(greedy, all);
  int sent = 0;
  while (greedy.try_send(Note{1}) == SendResult::kSent) {
    ++sent;
  }
  EXPECT_EQ(sent, 3);
  EXPECT_EQ(narrow.try_send(Note{1}), SendResult::kFull);
  EXPECT_EQ(all.with_credits(3).try_send(Note{2}), SendResult::kSent);
  EXPECT_EQ(all.depth(), 4U);
  world.run_for(1500ms);  // two are taken
  EXPECT_EQ(narrow.try_send(Note{1}), SendResult::kSent);
  EXPECT_EQ(greedy.try_send(Note{1}), SendResult::kSent);
  EXPECT_EQ(greedy.try_send(Note{1}), SendResult::kFull);
  world.run_for(10s);
  EXPECT_EQ(all.depth(), 0U);
  for (sent = 0; greedy.try_send(Note{1}) == SendResult::kSent; ++sent) {
  }
  EXPECT_EQ(sent, 3);  // all came back
}

TEST_F(MailboxShareTest, SendersOfAFullShareWaitInTheirOrderWhileOthersPass) {
  MailboxWorld<Slow<WhenFull::kWait>> world({.credits = 4});
  const auto all = world.actor.address();
  const auto mine = all.with_credits(1);
  Scope senders(world.loop);
  const auto send = [](Address<Note> a, int value) -> Task<> { co_await a.send(Note{value}); };
  for (int i = 0; i < 4; ++i) {
    senders.spawn("mine", send, Address<Note>(mine), i);
  }
  senders.spawn("other", send, Address<Note>(all), 100);
  world.loop.run(&Scope::join, &senders);
  world.run_for(10s);
  // 0 has the share's credit; 1 gets it when 0 is taken, behind the other's message, and so on.
  EXPECT_EQ(world.actor.notes, (std::vector<int>{0, 100, 1, 2, 3}));
}

TEST_F(MailboxShareTest, DropOldestOfAFullShareDropsTheSendersOwn) {
  MailboxWorld<Slow<WhenFull::kDropOldest>> world({.credits = 8});
  const auto all = world.actor.address();
  const auto greedy = all.with_credits(2);
  world.inside([&] {
    EXPECT_EQ(all.try_send(Note{100}), SendResult::kSent);
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(greedy.try_send(Note{i}), SendResult::kSent);
    }
    EXPECT_EQ(all.depth(), 3U);
  });
  world.run_for(10s);
  EXPECT_EQ(world.actor.notes, (std::vector<int>{100, 48, 49}));
}

TEST_F(MailboxShareTest, EachAddressMayComeWithAShare) {
  MailboxWorld<Slow<WhenFull::kReject>> world({.credits = 4, .credits_per_sender = 2});
  const auto one = world.actor.address();
  const auto two = world.actor.address();
  EXPECT_EQ(one.try_send(Note{1}), SendResult::kSent);
  EXPECT_EQ(one.try_send(Note{1}), SendResult::kSent);
  EXPECT_EQ(one.try_send(Note{1}), SendResult::kFull);
  EXPECT_EQ(two.try_send(Note{2}), SendResult::kSent);
}

TEST_F(MailboxShareTest, CreditsComeBackWhenSendersGiveUpOrTheActorDies) {
  MailboxWorld<Slow<WhenFull::kWait>> world({.credits = 2});
  const auto mine = world.actor.address().with_credits(1);
  {
    Scope senders(world.loop);
    for (int i = 0; i < 3; ++i) {
      senders.spawn(
          "sender",
          [](decltype(mine) a, StopToken stop) -> Task<> { co_await a.send(Note{1}, stop); }, mine,
          senders.stop_token());
      senders.spawn(
          "asker",
          [](decltype(mine) a) -> Task<> {
            EXPECT_THROW((void)co_await a.ask(Read{}, 10ms), DeadlineExceeded);
          },
          mine);
    }
    world.run_for(100ms);
    senders.request_stop();
    world.loop.run(&Scope::join, &senders);
  }
  EXPECT_LE(alive.load(), 2);  // abandoned sends do not wait on
  world.run_for(10s);
  EXPECT_EQ(mine.try_send(Note{2}), SendResult::kSent);
  EXPECT_EQ(mine.try_send(Note{2}), SendResult::kFull);
  world.scope.request_stop();
  world.loop.run(&Scope::join, &world.scope);
  EXPECT_EQ(mine.try_send(Note{2}), SendResult::kClosed);
  EXPECT_EQ(alive.load(), 0);
}

struct Counter : Actor<Counter, Note> {
  Counter() : Actor("counter", MailboxOptions{.credits = 4}) {}
  void handle(Note) {
    if (--left == 0) {
      done.set();
    }
  }
  int left = 0;
  Event done;
};

TEST_F(MailboxShareTest, NoCreditIsLostOrWonAcrossThreads) {
  constexpr int kEach = 300;
  EventLoop loop({.name = "counter"});
  Scope scope(loop);
  Counter counter;
  counter.left = 3 * 2 * kEach;
  counter.start(scope);
  std::vector<Address<Note>> shares;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    shares.push_back(counter.address().with_credits(2));
    // Each thread's two coroutines use one share in two ways; all three shares together are more
    // than the mailbox.
    threads.emplace_back([address = shares.back()] {
      EventLoop mine({.name = "sender"});
      Scope senders(mine);
      for (int k = 0; k < 2; ++k) {
        senders.spawn(
            "sender",
            [](Address<Note> a) -> Task<> {
              for (int i = 0; i < kEach; ++i) {
                if (i % 3 != 0) {
                  co_await a.send(Note{i});
                  continue;
                }
                while (a.try_send(Note{i}) != SendResult::kSent) {
                  co_await yield();
                }
              }
            },
            address);
      }
      mine.run(&Scope::join, &senders);
    });
  }
  loop.run([](Event* done) -> Task<> { co_await *done; }, &counter.done);
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(counter.address().depth(), 0U);
  for (const Address<Note>& share : shares) {  // the loop does not run: nothing is taken meanwhile
    const bool room = counter.address().depth() < 4;
    EXPECT_EQ(share.try_send(Note{1}), room ? SendResult::kSent : SendResult::kFull);
    EXPECT_EQ(share.try_send(Note{1}), room ? SendResult::kSent : SendResult::kFull);
    EXPECT_EQ(share.try_send(Note{1}), SendResult::kFull);
  }
  counter.close();
  loop.run(&Scope::join, &scope);
}

// ---- giving up across loops
TEST_F(MailboxShareTest, ASendToAnotherLoopIsWithdrawnWhileTheActorIsStuck) {
  EventLoop other({.name = "other"});
  Scope there(other);
  struct Stuck : Actor<Stuck, Note> {
    Stuck() : Actor("stuck", MailboxOptions{.credits = 1}) {}
    Task<> handle(Note) { co_await release; }
    Event release;
  };
  Stuck stuck;
  stuck.start(there);
  const auto address = stuck.address();
  const StopHandle stop_there = there.stop_handle();
  EXPECT_EQ(address.try_send(Note{1}), SendResult::kSent);
  other.run(
      [](Stuck::AddressType a) -> Task<> {
        while (a.depth() > 0) {
          co_await yield();
        }
      },
      address);
  EXPECT_EQ(address.try_send(Note{2}), SendResult::kSent);
  std::thread thread([&] { other.run(&Scope::join, &there); });
  EventLoop loop;
  Scope senders(loop);
  std::atomic<int> stopped{0};
  for (int i = 0; i < 10; ++i) {
    senders.spawn(
        "sender",
        [](Stuck::AddressType a, StopToken stop, std::atomic<int>* count) -> Task<> {
          try {
            co_await a.send(Note{3}, stop);
          } catch (const Stopped&) {
            ++*count;
          }
        },
        address, senders.stop_token(), &stopped);
  }
  loop.run(
      [](Scope* s) -> Task<> {
        co_await yield();
        s->request_stop();
        co_await s->join();
      },
      &senders);
  EXPECT_EQ(stopped.load(), 10);
  EXPECT_EQ(address.depth(), 1U);
  stop_there.request_stop();
  struct Free : Op {
    explicit Free(Event& e)
        : Op([](Op& op) noexcept { static_cast<Free&>(op).event.set(); }), event(e) {}
    Event& event;
  } free(stuck.release);
  other.post_from_any_thread(free);
  thread.join();
}

}  // namespace
}  // namespace tandem
