// Parents in the field: a scope that owns one closes it like any other, and its children end with
// it; children that are started while all of them are restarted.
#include <stdexcept>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/children.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Chore {};
struct Hand : Actor<Hand, Chore> {
  explicit Hand(int* count) : done(count) {}
  void handle(Chore) { ++*done; }
  int* done;
};
struct Foreman : Actor<Foreman, Chore> {
  explicit Foreman(int* count) : done(count) {}
  void on_start() { hand = children.start<Hand>(done); }
  Task<> handle(Chore m) { co_await hand.send(m); }
  int* done;
  Children children{*this};
  Hand::AddressType hand;
};

TEST(OwnedParent, IsClosedThoughItsChildrenRun) {
  EventLoop loop;
  Scope scope(loop, "actors");
  int done = 0;
  Foreman& first = scope.start<Foreman>(&done);
  Foreman& second = scope.start<Foreman>(&done);
  loop.run(
      [](Foreman::AddressType a, Foreman::AddressType b) -> Task<> {
        co_await a.send(Chore{});
        co_await b.send(Chore{});
        co_await sleep_for(1ms);
      },
      first.address(), second.address());
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(done, 2);
  EXPECT_TRUE(first.ended() && second.ended());
  EXPECT_EQ(first.children.running(), 0U);
}

TEST(OwnedParent, IsClosedOnlyAfterTheOtherTasksOfItsScope) {
  EventLoop loop;
  Scope scope(loop, "actors");
  int done = 0;
  Foreman& foreman = scope.start<Foreman>(&done);
  scope.spawn(
      "sender",
      [](Foreman::AddressType to) -> Task<> {
        co_await sleep_for(5ms);
        co_await to.send(Chore{});
        co_await sleep_for(5ms);
      },
      foreman.address());
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(done, 1);
}

struct Fall {};
struct Climber : Actor<Climber, Chore, Fall> {
  Task<> handle(Chore) { co_await sleep_for(20ms); }
  void handle(Fall) { throw std::runtime_error("fell"); }
};

TEST(LateChild, FailsWhileAllOthersAreRestarted) {
  ManualClock clock;
  EventLoop loop({.name = "mountain", .clock = &clock});
  Scope scope(loop, "rope");
  Children all(scope, {.limit = {.most = 9}, .strategy = Children::Strategy::kAllForOne});
  loop.run(
      [](Children* rope, Scope* of) -> Task<> {
        const auto first = rope->start<Climber>();
        const auto second = rope->start<Climber>();
        co_await second.send(Chore{});  // its restart lasts until that is done
        co_await first.send(Fall{});
        co_await sleep_for(5ms);
        const auto late = rope->start<Climber>();
        co_await late.send(Fall{});
        co_await sleep_for(1s);
        for (const auto& climber : {first, second, late}) {
          co_await climber.send(Chore{});
        }
        co_await sleep_for(1s);
        for (const auto& climber : {first, second, late}) {
          EXPECT_EQ(climber.depth(), 0U);
        }
        EXPECT_EQ(rope->restarts(), 2U);
        rope->request_stop();
        co_await of->join();
      },
      &all, &scope);
}

// Its constructor throws when it is made for the second time, so the restart of all begins anew.
struct Shaky : Actor<Shaky, Chore> {
  explicit Shaky(int* made) {
    if (++*made == 2) {
      throw std::runtime_error("not now");
    }
  }
  void handle(Chore) {}
};

TEST(RestartOfAll, BeginsAnewWhereOneCannotBeMade) {
  ManualClock clock;
  EventLoop loop({.name = "mountain", .clock = &clock});
  Scope scope(loop, "rope");
  Children all(scope, {.limit = {.most = 9}, .strategy = Children::Strategy::kAllForOne});
  int made = 0;
  loop.run(
      [](Children* rope, Scope* of, int* count) -> Task<> {
        const auto first = rope->start<Climber>();
        (void)rope->start<Shaky>(count);
        const auto third = rope->start<Climber>();
        for (int i = 0; i < 3; ++i) {
          co_await first.send(Fall{});
          co_await sleep_for(1s);
        }
        co_await third.send(Chore{});
        co_await sleep_for(1s);
        EXPECT_EQ(third.depth(), 0U);
        EXPECT_EQ(rope->running(), 3U);
        EXPECT_EQ(rope->restarts(), 4U);
        rope->request_stop();
        co_await of->join();
      },
      &all, &scope, &made);
  EXPECT_EQ(made, 5);
}

}  // namespace
}  // namespace tandem
