// A small actor system, tested as a user of the library would; then the kit's own failures.
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervision/children.hpp"
#include "runtime/supervision/monitor.hpp"
#include "runtime/testing/gtest.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// A counter of words, fed by a reader, asked by a reporter with a deadline.
struct Word {
  std::string text;
};
struct Count {
  using Reply = int;
};
struct Reset {};
struct Counter : Actor<Counter, Word, Count, Reset> {
  explicit Counter(std::uint32_t credits = 8) : Actor("counter", credits) {}
  void handle(Word m) {
    if (m.text.empty()) {
      throw std::runtime_error("an empty word");
    }
    words.push_back(std::move(m.text));
  }
  int handle(Count) { return static_cast<int>(words.size()); }
  void handle(Reset) { words.clear(); }
  std::vector<std::string> words;
};
struct Line {
  std::string text;
};
struct Reader : Actor<Reader, Line> {
  explicit Reader(Counter::AddressType to_in) : Actor("reader"), to(std::move(to_in)) {}
  Task<> handle(Line m) {
    std::string word;
    for (const char c : m.text + ' ') {
      if (c == ' ') {
        co_await to.send(Word{std::exchange(word, {})});
      } else {
        word += c;
      }
    }
  }
  Counter::AddressType to;
};

Task<int> report(Counter::AddressType counter) { co_return co_await counter.ask(Count{}, 100ms); }
Task<> remind(Counter::AddressType counter, StopToken stop) {
  for (;;) {
    co_await sleep_for(10s, stop);
    co_await counter.send(Reset{}, stop);
  }
}

struct WordCount : TestKitFixture {
  Counter& counter = kit.make<Counter>();
  Reader& reader = kit.make<Reader>(counter.address());
  void read(const std::string& line) {
    (void)reader.address().try_send(Line{line});
    kit.expect<Line>().from("outside").to(reader);
  }
};

TEST_F(WordCount, ExpectDeliversTheNextMessageOfTheTarget) {
  read("red fish");
  EXPECT_TRUE(counter.words.empty());
  kit.expect<Word>().from("reader").to(counter).with([](const Word& w) { return w.text == "red"; });
  EXPECT_EQ(counter.words, (std::vector<std::string>{"red"}));
  kit.expect<Word>().to("counter");
  kit.disallow<Word>();
  EXPECT_EQ(counter.words.size(), 2U);
}

TEST_F(WordCount, AllowDeliversIfItIsThere) {
  read("red");
  EXPECT_FALSE(kit.allow<Reset>().to(counter));
  EXPECT_TRUE(kit.allow<Word>().to(counter.address()));
  EXPECT_FALSE(kit.allow<Word>().to(counter));
}

TEST_F(WordCount, PreponeAndPostponeReorder) {
  read("a b c");
  kit.prepone<Word>().with([](const Word& w) { return w.text == "b"; });
  kit.postpone<Word>().with([](const Word& w) { return w.text == "a"; });
  EXPECT_EQ(kit.run_until_idle(), 3U);
  EXPECT_EQ(counter.words, (std::vector<std::string>{"b", "c", "a"}));
}

TEST_F(WordCount, ReorderIsDecidedByItsSeed) {
  std::vector<std::vector<std::string>> orders;
  for (const std::uint64_t seed : {1, 1, 2}) {
    read("a b c d e f");
    kit.reorder(seed);
    kit.run_until_idle();
    orders.push_back(std::exchange(counter.words, {}));
  }
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_NE(orders[0], orders[2]);
  EXPECT_EQ(orders[0].size(), 6U);
}

TEST_F(WordCount, DropReturnsTheMessageAndGivesTheCreditBack) {
  read("1 2 3 4 5 6 7 8 9");  // one more than there are credits
  EXPECT_EQ(kit.pending_count(), 8U);
  kit.drop<Word>().with([](const Word& w) { return w.text == "3"; });
  EXPECT_EQ(kit.pending_count(), 8U);
  kit.run_until_idle();
  EXPECT_EQ(counter.words, (std::vector<std::string>{"1", "2", "4", "5", "6", "7", "8", "9"}));
  auto asked = kit.start("reporter", &report, counter.address());
  kit.drop<Count>().from("reporter");
  EXPECT_THROW((void)asked.get(), ActorClosed);
}

TEST_F(WordCount, AsksWaitForTheirDelivery) {
  auto asked = kit.start("reporter", &report, counter.address());
  EXPECT_FALSE(asked.ready());
  EXPECT_EQ(kit.pending(), "  1. Count from reporter to counter\n");
  kit.expect<Count>().from("reporter").to(counter);
  EXPECT_EQ(asked.get(), 0);
}

TEST_F(WordCount, TheClockMovesWhenTheTestSaysSo) {
  auto asked = kit.start("reporter", &report, counter.address());
  kit.advance(99ms);
  EXPECT_FALSE(asked.ready());
  kit.advance(1ms);
  EXPECT_THROW((void)asked.get(), DeadlineExceeded);
  kit.expect<Count>();  // late, and of no harm
}

TEST_F(WordCount, TimersFireInOrderEachAtItsTime) {
  std::vector<std::string> log;
  auto wake = [](std::vector<std::string>* out, const char* name, Duration after) -> Task<> {
    co_await sleep_for(after);
    out->push_back(std::string(name) +
                   std::to_string(EventLoop::current().now().time_since_epoch() / 1s));
  };
  kit.spawn("b", wake, &log, "b", 2s);
  kit.spawn("a", wake, &log, "a", 1s);
  kit.spawn("c", wake, &log, "c", 3s);
  kit.advance(2s);
  EXPECT_EQ(log, (std::vector<std::string>{"a1", "b2"}));
  kit.advance(10s);
  EXPECT_EQ(log.back(), "c3");
  EXPECT_EQ(kit.now().time_since_epoch(), 12s);
}

TEST_F(WordCount, ATimersMessagesWaitLikeAllOthers) {
  kit.spawn("reminder", &remind, counter.address(), kit.scope().stop_token());
  kit.advance(35s);
  EXPECT_EQ(kit.pending_count(), 3U);
  kit.expect<Reset>().from("reminder").to(counter);
  EXPECT_TRUE(kit.run_one());
  EXPECT_EQ(kit.run_until_idle(), 1U);
  EXPECT_FALSE(kit.run_one());
}

struct Guard : Actor<Guard, Down> {
  explicit Guard(Counter::AddressType of_in) : Actor("guard"), of(std::move(of_in)) {}
  void on_start() { watch_it = watch(of, address()); }
  void handle(Down down) { seen.push_back(down.reason.text()); }
  Counter::AddressType of;
  Watch watch_it;
  std::vector<std::string> seen;
};

TEST_F(WordCount, SupervisionAndMonitorsWorkThroughIt) {
  Children children(kit.scope(), {.limit = {.most = 1}});
  const Counter::AddressType child = children.start<Counter>(std::uint32_t{4});
  auto& guard = kit.make<Guard>(child);
  (void)child.try_send(Word{""});
  (void)child.try_send(Word{"kept"});
  kit.expect<Word>().to(child);
  kit.expect<Word>().to(child);
  auto asked = kit.start("reporter", &report, child);
  kit.expect<Count>().to(child);
  EXPECT_EQ(asked.get(), 1);
  EXPECT_TRUE(guard.seen.empty());
  (void)child.try_send(Word{""});
  kit.expect<Word>().to(child);
  kit.allow<Down>().from("counter").to(guard);
  EXPECT_EQ(kit.failures().size(), 1U);
  kit.finish();
}

// ---- the verbs fail when they must
class KitFailures : public ::testing::Test {
 protected:
  template <class Say>
  std::string failure_of(Say say) {
    try {
      say();
    } catch (const TestKit::Unexpected& error) {
      return error.what();
    }
    return "";
  }
  TestKit kit;
  Counter& counter = kit.make<Counter>();
  Counter& second = kit.make<Counter>();
};

TEST_F(KitFailures, ExpectSaysWhatWaitsInstead) {
  (void)counter.address().try_send(Word{"red"});
  (void)counter.address().try_send(Reset{});
  const std::string text = failure_of([&] { kit.expect<Reset>().from("outside").to(counter); });
  EXPECT_THAT(text, HasSubstr("test_kit_test.cpp:"));
  EXPECT_THAT(text,
              HasSubstr("[test kit] expected next: Reset from outside to counter\nwaiting:\n"
                        "  1. Word from outside to counter\n  2. Reset from outside to counter\n"));
  EXPECT_EQ(kit.pending_count(), 2U);
}

TEST_F(KitFailures, EachPartOfASentenceCounts) {
  (void)counter.address().try_send(Word{"red"});
  EXPECT_NE(failure_of([&] { kit.expect<Word>().from("absent"); }), "");
  EXPECT_NE(failure_of([&] { kit.expect<Word>().to("absent"); }), "");
  EXPECT_NE(failure_of([&] { kit.expect<Word>().to(second); }), "");
  EXPECT_THAT(failure_of([&] {
                kit.expect<Word>().to(counter).with([](const Word& w) { return w.text == "blue"; });
              }),
              HasSubstr("expected next: Word to counter that fits"));
  EXPECT_NE(failure_of([&] { kit.expect<Reset>(); }), "");
  EXPECT_EQ(failure_of([&] { kit.expect<Word>(); }), "");
  EXPECT_THAT(failure_of([&] { kit.expect<Word>(); }), HasSubstr("(no message waits)"));
}

TEST_F(KitFailures, TheOtherVerbs) {
  (void)counter.address().try_send(Word{"red"});
  EXPECT_THAT(failure_of([&] { kit.disallow<Word>().to(counter); }),
              HasSubstr("disallowed, but it waits: Word to counter"));
  EXPECT_EQ(failure_of([&] { kit.disallow<Word>().to(second); }), "");
  EXPECT_THAT(failure_of([&] { kit.prepone<Reset>(); }), HasSubstr("there is none: Reset"));
  EXPECT_NE(failure_of([&] { kit.postpone<Reset>(); }), "");
  EXPECT_NE(failure_of([&] { kit.drop<Word>().to(second); }), "");
  EXPECT_EQ(kit.pending_count(), 1U);
}

TEST_F(KitFailures, BoundsInsteadOfHanging) {
  kit.spawn(
      "echo",
      [](Counter::AddressType to, StopToken stop) -> Task<> {
        for (;;) {
          co_await to.send(Reset{}, stop);
        }
      },
      counter.address(), kit.scope().stop_token());
  EXPECT_THAT(failure_of([&] { kit.run_until_idle(100); }),
              HasSubstr("not idle after 100 messages"));
  auto asked = kit.start("reporter", &report, second.address());
  EXPECT_THAT(failure_of([&] { (void)asked.get(); }), HasSubstr("the task has not ended"));
}

TEST_F(KitFailures, WhatDoesNotEndIsNamed) {
  Event never;
  kit.spawn("stuck", [](Event* event) -> Task<> { co_await *event; }, &never);
  EXPECT_THAT(
      failure_of([&] { kit.finish(); }),
      HasSubstr("these do not end when they are asked to stop:\nscope \"test\": 1 running"));
  never.set();
  kit.settle();
}

}  // namespace
}  // namespace tandem
