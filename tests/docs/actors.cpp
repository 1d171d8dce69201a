// Snippets of docs/runtime.md: actors, mailboxes, asking. tools/docs_in_step.py keeps the page
// equal to this.
#include <deque>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <tandem/runtime/actor.hpp>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/scope.hpp>

namespace {

using namespace std::chrono_literals;
using tandem::Task;

// [handlers]
struct Tick {
  int value;
};
struct Sum {
  using Reply = int;
};
struct SlowSum {
  using Reply = int;
};
struct NextTick {
  using Reply = int;
};

struct Meter : tandem::Actor<Meter, Tick, Sum, SlowSum, NextTick> {
  Meter() : Actor("meter", 16) {}  // a name for traces and errors; 16 messages may wait

  void handle(Tick m) {  // a message
    sum += m.value;
    while (!waiting.empty()) {
      waiting.front().send(m.value);
      waiting.pop_front();
    }
  }
  int handle(Sum) { return sum; }  // a request, answered at once
  Task<int> handle(SlowSum) {      // ... after some awaits; the next message waits that long
    co_await tandem::sleep_for(1ms);
    co_return sum;
  }
  void handle(NextTick, tandem::ReplyTo<NextTick> reply) {  // ... or later, by another handler
    waiting.push_back(std::move(reply));
  }
  void on_close() { waiting.clear(); }  // last of all; unanswered askers get an error

  int sum = 0;
  std::deque<tandem::ReplyTo<NextTick>> waiting;
};
// [/handlers]

// [narrow]
/// Knows nothing of Meter: whatever takes a Tick will do.
Task<> beat(tandem::Address<Tick> target) {
  for (int i = 1; i <= 3; ++i) {
    co_await target.send(Tick{i});
  }
}
// [/narrow]

// [try_send]
int flood(tandem::Address<Tick> target) {  // any thread, not only a coroutine
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    if (target.try_send(Tick{1}) == tandem::SendResult::kFull) {
      ++refused;  // drop it, count it, try later: the sender decides
    }
  }
  return refused;
}
// [/try_send]

// [ask]
Task<std::string> ask_politely(Meter::AddressType meter) {
  try {
    const int next = co_await meter.ask(NextTick{}, 100ms);
    co_return "next tick: " + std::to_string(next);
  } catch (const tandem::DeadlineExceeded&) {
    co_return "no tick within 100 ms";  // an answer that comes later is dropped
  } catch (const tandem::ActorClosed&) {
    co_return "the meter is gone";
  }
}
// [/ask]

class DocsActors : public testing::Test {
 protected:
  void SetUp() override { meter.start(scope); }
  void TearDown() override {
    meter.close();
    loop.run(&tandem::Scope::join, &scope);
  }
  tandem::ManualClock clock;
  tandem::EventLoop loop{{.name = "docs", .clock = &clock}};
  tandem::Scope scope{loop, "actors"};
  Meter meter;
};

TEST_F(DocsActors, EveryHandlerAnswers) {
  loop.run(&beat, tandem::Address<Tick>(meter.address()));
  loop.run(
      [](Meter::AddressType a) -> Task<> {
        EXPECT_EQ(co_await a.ask(Sum{}), 6);
        EXPECT_EQ(co_await a.ask(SlowSum{}), 6);
      },
      meter.address());
  EXPECT_EQ(loop.run(&ask_politely, meter.address()), "no tick within 100 ms");
  meter.close();
  loop.run(&tandem::Scope::join, &scope);
  EXPECT_EQ(loop.run(&ask_politely, meter.address()), "the meter is gone");
}

TEST_F(DocsActors, AFullMailboxSaysSo) {
  EXPECT_EQ(flood(meter.address()), 100 - 16);  // the actor has not run yet
}

}  // namespace
