// Receiving from several channels: one value is taken, and none is lost.
#include "runtime/select.hpp"

#include <optional>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/with_deadline.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Select : testing::Test {
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
};

Task<> send_each(Channel<int>* channel, int from, int count, Duration apart) {
  for (int i = 0; i < count; ++i) {
    co_await sleep_for(apart);
    (void)co_await channel->send(from + i);
  }
  channel->close();
}

Task<int> add_up(Channel<int>* a, Channel<int>* b, Duration limit) {
  int sum = 0;
  for (;;) {
    try {
      const auto got = co_await select(limit, {}, *a, *b);
      if (!got) {
        co_return sum;
      }
      EXPECT_EQ(got->index, got->value >= 1000 ? 1U : 0U);
      sum += got->value;
    } catch (const DeadlineExceeded&) {
    }
  }
}

TEST_F(Select, TakesEveryValueOfTwoChannelsOnce) {
  for (const std::size_t capacity : {0U, 1U, 3U}) {
    for (const Duration limit : {Duration(3ms), Duration(1h)}) {  // the first meets the values
      Channel<int> a(capacity);
      Channel<int> b(capacity);
      Scope scope(loop);
      scope.spawn("a", &send_each, &a, 0, 40, Duration(3ms));
      scope.spawn("b", &send_each, &b, 1000, 40, Duration(5ms));
      EXPECT_EQ(loop.run(&add_up, &a, &b, limit), 40 * 39 / 2 + 40 * 1000 + 40 * 39 / 2);
      loop.run(&Scope::join, &scope);
      EXPECT_EQ(loop.armed_timers(), 0U);
    }
  }
}

TEST_F(Select, TwoThatAreSentAtOnceAreTakenOneAfterTheOther) {
  Channel<int> a(0);
  Channel<int> b(0);
  Scope scope(loop);
  scope.spawn(
      "senders",
      [](Channel<int>* x, Channel<int>* y) -> Task<> {
        co_await sleep_for(1ms);
        EXPECT_TRUE(y->try_send(2));   // one waits there
        EXPECT_FALSE(x->try_send(1));  // and none does here any more
        co_await sleep_for(1ms);
        EXPECT_TRUE(x->try_send(1));
      },
      &a, &b);
  loop.run(
      [](Channel<int>* x, Channel<int>* y) -> Task<> {
        const auto first = co_await select(*x, *y);
        EXPECT_EQ(first->index, 1U);
        EXPECT_EQ(first->value, 2);
        const auto second = co_await select(*x, *y);
        EXPECT_EQ(second->index, 0U);
        EXPECT_EQ(second->value, 1);
      },
      &a, &b);
  loop.run(&Scope::join, &scope);
}

TEST_F(Select, AValueThatMeetsAStopStaysInItsChannel) {
  Channel<int> a(4);
  Channel<int> b(4);
  loop.run(
      [](Channel<int>* x, Channel<int>* y) -> Task<> {
        co_await with_scope(
            [](Scope& scope, Channel<int>* p, Channel<int>* q) -> Task<> {
              scope.spawn(
                  "selects",
                  [](Channel<int>* one, Channel<int>* other) -> Task<> {
                    (void)co_await select(co_await current_stop_token(), *one, *other);
                    ADD_FAILURE() << "it was stopped";
                  },
                  p, q);
              co_await yield();
              EXPECT_TRUE(q->try_send(1));
              EXPECT_TRUE(q->try_send(2));
              scope.request_stop();
            },
            x, y);
      },
      &a, &b);
  EXPECT_EQ(b.try_receive(), 1);
  EXPECT_EQ(b.try_receive(), 2);
  EXPECT_EQ(a.size() + b.size(), 0U);
}

TEST_F(Select, ADeadlineAroundItTakesNoValue) {
  Channel<int> a(1);
  Scope scope(loop);
  scope.spawn("a", &send_each, &a, 1, 50, Duration(10ms));
  const int sum = loop.run(
      [](Channel<int>* x) -> Task<int> {
        int total = 0;
        for (;;) {
          try {
            const auto got = co_await with_deadline(
                10ms,
                [](Channel<int>* from) -> Task<std::optional<First<int>>> {
                  co_return co_await select(co_await current_stop_token(), *from);
                },
                x);
            if (!got) {
              co_return total;
            }
            total += got->value;
          } catch (const DeadlineExceeded&) {
          }
        }
      },
      &a);
  EXPECT_EQ(sum, 50 * 51 / 2);
  loop.run(&Scope::join, &scope);
}

TEST_F(Select, OfSeveralTypesAndOfARange) {
  Channel<int> numbers(2);
  Channel<std::string> words(2);
  loop.run(
      [](Channel<int>* n, Channel<std::string>* w) -> Task<> {
        EXPECT_TRUE(w->try_send("word"));
        const auto word = co_await select(*n, *w);
        EXPECT_EQ(word->index, 1U);
        EXPECT_EQ(std::get<1>(word->value), "word");
        EXPECT_TRUE(n->try_send(7));
        w->close();
        EXPECT_EQ(std::get<0>((co_await select(*n, *w))->value), 7);
        n->close();
        EXPECT_FALSE((co_await select(*n, *w)).has_value());
      },
      &numbers, &words);
  std::deque<Channel<int>> many;
  std::vector<Channel<int>*> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(&many.emplace_back(1));
  }
  loop.run(
      [](std::vector<Channel<int>*> each) -> Task<> {
        EXPECT_TRUE(each[3]->try_send(33));
        const auto got = co_await select(1s, {}, each);
        EXPECT_EQ(got->index, 3U);
        EXPECT_EQ(got->value, 33);
        bool late = false;
        try {
          (void)co_await select(1s, {}, each);
        } catch (const DeadlineExceeded&) {
          late = true;
        }
        EXPECT_TRUE(late);
        for (Channel<int>* channel : each) {
          channel->close();
        }
        EXPECT_FALSE((co_await select({}, each)).has_value());
      },
      all);
}

TEST_F(Select, GoesOnWaitingWhenOneOfThemIsClosed) {
  Channel<int> a(1);
  Channel<int> b(1);
  Scope scope(loop);
  scope.spawn("a", &send_each, &a, 1, 0, Duration(0));  // closes it
  scope.spawn("b", &send_each, &b, 1000, 1, Duration(1s));
  EXPECT_EQ(loop.run(&add_up, &a, &b, Duration(1h)), 1000);
  loop.run(&Scope::join, &scope);
}

TEST_F(Select, AReaderThatNeverWaitsLetsOthersRun) {
  Channel<int> a(1);
  Scope scope(loop);
  bool ran = false;
  scope.spawn(
      "other",
      [](bool* out) -> Task<> {
        *out = true;
        co_return;
      },
      &ran);
  loop.run(
      [](Channel<int>* x, const bool* other) -> Task<> {
        for (int i = 0; i < 1000; ++i) {
          EXPECT_TRUE(x->try_send(int(i)));
          EXPECT_EQ((co_await select(*x))->value, i);
        }
        EXPECT_TRUE(*other);
      },
      &a, &ran);
  loop.run(&Scope::join, &scope);
}

}  // namespace
}  // namespace tandem
