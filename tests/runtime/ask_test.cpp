#include <array>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Delay {
  using Reply = int;
  Duration by{};
  int value = 0;
};
struct Keep {
  using Reply = int;
};
struct Answerer : Actor<Answerer, Delay, Keep> {
  Answerer() : Actor("answerer", 8) {}
  Task<int> handle(Delay request) {
    co_await sleep_for(request.by);
    co_return request.value;
  }
  void handle(Keep, ReplyTo<Keep> reply) { kept.push_back(std::move(reply)); }
  std::vector<ReplyTo<Keep>> kept;
};

class AskTest : public ::testing::Test {
 protected:
  void SetUp() override { answerer.start(scope); }
  void TearDown() override {
    answerer.close();
    loop.run(&Scope::join, &scope);
    EXPECT_EQ(loop.asks().pending(), 0U);
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  Scope scope{loop, "actors"};
  Answerer answerer;
};

TEST_F(AskTest, AnswerBeforeTheDeadline) {
  EXPECT_EQ(loop.run(
                [](Answerer* a) -> Task<int> {
                  const int first = co_await a->address().ask(Delay{1s, 1}, 2s);
                  co_return first +
                      co_await a->address().ask(Delay{1s, 2}, EventLoop::current().now() + 2s);
                },
                &answerer),
            3);
}

TEST_F(AskTest, ALateAnswerIsDropped) {
  const int result = loop.run(
      [](Answerer* a) -> Task<int> {
        int late = 0;
        for (int i = 0; i < 5; ++i) {
          try {
            late += co_await a->address().ask(Delay{3s, 100}, 1s);
          } catch (const DeadlineExceeded& error) {
            EXPECT_STREQ(error.what(), "[actor] Delay was not answered by answerer in time");
            ++late;
          }
        }
        // The late answers arrive while this one waits in the table slot that they had.
        co_return late + co_await a->address().ask(Delay{1s, 10});
      },
      &answerer);
  EXPECT_EQ(result, 15);
}

TEST_F(AskTest, AnAnswerAfterADeadlineDoesNotReachANewerAsk) {
  loop.run(
      [](Answerer* a) -> Task<> {
        EXPECT_THROW((void)co_await a->address().ask(Keep{}, 1s), DeadlineExceeded);
        Scope helpers(EventLoop::current());
        helpers.spawn(
            "newer",
            [](Answerer* actor) -> Task<> { EXPECT_EQ(co_await actor->address().ask(Keep{}), 2); },
            a);
        while (a->kept.size() < 2) {
          co_await yield();
        }
        a->kept[0].send(1);  // to the ask that gave up
        co_await yield();
        a->kept[1].send(2);
        co_await helpers.join();
      },
      &answerer);
}

TEST_F(AskTest, AStoppedAskLeavesNothingBehind) {
  Scope askers(loop);
  askers.spawn(
      "asker",
      [](Answerer* a, StopToken stop) -> Task<> {
        (void)co_await a->address().ask(Keep{}, 1h, stop);
      },
      &answerer, askers.stop_token());
  loop.run(
      [](Scope* s, Answerer* a) -> Task<> {
        while (a->kept.empty()) {
          co_await yield();
        }
        s->request_stop();
        co_await s->join();
      },
      &askers, &answerer);
  EXPECT_EQ(loop.asks().pending(), 0U);
  answerer.kept[0].send(1);
}

TEST_F(AskTest, ManyOutstandingAsks) {
  constexpr int kAsks = 1000;
  std::vector<int> got;
  Scope askers(loop);
  for (int i = 0; i < kAsks; ++i) {  // the mailbox holds 8: the rest waits in the wait queue
    askers.spawn(
        "asker",
        [](Answerer* a, int id, std::vector<int>* out) -> Task<> {
          out->push_back(id * co_await a->address().ask(Keep{}, 1h));
        },
        &answerer, i, &got);
  }
  loop.run(
      [](Answerer* a) -> Task<> {
        while (a->kept.size() < kAsks) {
          co_await yield();
        }
      },
      &answerer);
  EXPECT_EQ(loop.asks().pending(), static_cast<unsigned>(kAsks));
  for (auto& reply : answerer.kept) {
    reply.send(1);
  }
  loop.run(&Scope::join, &askers);
  ASSERT_EQ(got.size(), static_cast<std::size_t>(kAsks));
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end()));
}

// ---- between two loops

// A loop with an answerer on a thread of its own, until it is told to stop.
class OtherLoop {
 public:
  OtherLoop() {
    answerer.start(scope);
    thread_ = std::thread([this] { loop.run(&Scope::join, &scope); });
  }
  ~OtherLoop() {
    stop_.request_stop();
    thread_.join();
  }
  EventLoop loop{{.name = "other"}};
  Scope scope{loop, "other"};
  Answerer answerer;

 private:
  StopHandle stop_ = scope.stop_handle();
  std::thread thread_;
};

TEST(AskAcrossLoops, AnswersAndDeadlines) {
  OtherLoop other;
  EventLoop loop;
  const auto address = other.answerer.address();
  const int sum = loop.run(
      [](Answerer::AddressType a) -> Task<int> {
        int total = 0;
        for (int i = 0; i < 500; ++i) {
          total += co_await a.ask(Delay{0s, 1}, 10s);
        }
        int late = 0;
        for (int i = 0; i < 20;
             ++i) {  // answers and deadlines race; either is right, nothing is lost or doubled
          try {
            total += co_await a.ask(Delay{1ms, 0}, 1ms);
          } catch (const DeadlineExceeded&) {
            ++late;
          }
        }
        EXPECT_LE(late, 20);
        co_return total;
      },
      address);
  EXPECT_EQ(sum, 500);
  EXPECT_EQ(loop.asks().pending(), 0U);
}

TEST(AskAcrossLoops, AnAnswerMayComeAfterTheAskersLoopIsGone) {
  OtherLoop other;
  for (int i = 0; i < 20; ++i) {
    EventLoop loop;
    loop.run(
        [](Answerer::AddressType a) -> Task<> {
          try {
            (void)co_await a.ask(Delay{2ms, 0}, 100us);
          } catch (const DeadlineExceeded&) {
          }
        },
        other.answerer.address());
  }
}

TEST(AskAcrossLoops, SendersWaitInLine) {
  OtherLoop other;
  EventLoop loop;
  Scope scope(loop);
  int answered = 0;
  for (int i = 0; i < 100; ++i) {
    scope.spawn(
        "asker",
        [](Answerer::AddressType a, int* count) -> Task<> {
          *count += co_await a.ask(Delay{10us, 1});
        },
        other.answerer.address(), &answered);
  }
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(answered, 100);
}

struct Tick {
  int value;
};
struct Ticker : Actor<Ticker, Tick, Keep> {
  Ticker() : Actor("ticker", 2) {}
  Task<> handle(Tick tick) {
    co_await sleep_for(20us);
    in_order = in_order && tick.value == count;
    ++count;
  }
  int handle(Keep) { return count; }
  int count = 0;
  bool in_order = true;
};

TEST(SendAcrossLoops, WaitsForCreditsAndKeepsTheOrder) {
  EventLoop other;
  Scope there(other);
  Ticker ticker;
  ticker.start(there);
  const StopHandle stop = there.stop_handle();
  std::thread thread([&] { other.run(&Scope::join, &there); });
  EventLoop loop;
  const int count = loop.run(
      [](Ticker::AddressType a) -> Task<int> {
        for (int i = 0; i < 300; ++i) {
          co_await a.send(Tick{i});
        }
        co_return co_await a.ask(Keep{});
      },
      ticker.address());
  stop.request_stop();
  thread.join();
  EXPECT_EQ(count, 300);
  EXPECT_TRUE(ticker.in_order);
}

TEST(SendAcrossLoops, AClosedActorEndsTheWaitForCredits) {
  EventLoop other;
  Scope there(other);
  Ticker ticker;
  ticker.start(there);
  const StopHandle stop = there.stop_handle();
  std::thread thread([&] { other.run(&Scope::join, &there); });
  EventLoop loop;
  const int sent = loop.run(
      [](Ticker::AddressType a, StopHandle handle) -> Task<int> {
        int count = 0;
        try {
          for (;; ++count) {
            if (count == 50) {
              handle.request_stop();
            }
            co_await a.send(Tick{count});
          }
        } catch (const ActorClosed&) {
        }
        co_return count;
      },
      ticker.address(), stop);
  thread.join();
  EXPECT_GE(sent, 50);
  EXPECT_GE(sent, ticker.count);
}

struct Asked {
  Address<Keep> whom;
  Task<> (*within)(Asked*, int) = nullptr;
  std::size_t at = 0;
  std::string error;
};
Task<> ask_and_fail(Asked* asked, int /*depth*/) {
  try {
    co_await asked->whom.ask(Keep{});
  } catch (const std::exception& error) {
    asked->error = error.what();
  }
}

// Asks from within `depth` frames of this size and a little more. They are called by a pointer, so
// that the compiler cannot lay one into the other.
template <std::size_t kBytes>
Task<> ask_within(Asked* asked, int depth) {
  std::array<char, kBytes> kept{};
  kept[asked->at % kBytes] = 1;
  co_await (depth > 0 ? asked->within : &ask_and_fail)(asked, depth - 1);
  asked->at += kept[asked->at % kBytes];
}

// One of these frames gets the memory of the frame in which the actor handled its messages.
TEST(Ask, OfAnEndedActorIsNotTakenForItsOwn) {
  EventLoop loop;
  Asked asked;
  {
    Scope scope(loop);
    Answerer answerer;
    asked.whom = answerer.address();
    answerer.start(scope);
    answerer.close();
    loop.run(&Scope::join, &scope);
  }
  const auto ask = [&](Task<> (*within)(Asked*, int)) {
    asked.within = within;
    // The argument makes the loop's own frame too large for that memory.
    loop.run(
        [](Asked* by, std::array<char, 128> /*room*/) -> Task<> { co_await by->within(by, 8); },
        &asked, std::array<char, 128>{});
    EXPECT_EQ(asked.error, "[actor] answerer does not take messages any more");
  };
  [&]<std::size_t... kSteps>(std::index_sequence<kSteps...>) {
    (ask(&ask_within<64 * kSteps + 1>), ...);
  }(std::make_index_sequence<16>());
}

}  // namespace
}  // namespace tandem
