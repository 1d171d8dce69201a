#include "runtime/scope.hpp"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

class ScopeTest : public ::testing::Test {
 protected:
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  std::vector<std::string> log;
};

Task<> work(std::vector<std::string>* log, const char* name, Duration length, StopToken stop) {
  try {
    co_await sleep_for(length, stop);
    log->push_back(std::string(name) + " done");
  } catch (const Stopped&) {
    log->push_back(std::string(name) + " stopped");
    throw;
  }
}
Task<> fail_after(Duration length, const char* text) {
  co_await sleep_for(length);
  throw std::runtime_error(text);
}

TEST_F(ScopeTest, JoinWaitsForAll) {
  loop.run(
      [](std::vector<std::string>* out) -> Task<> {
        co_await with_scope(
            [](Scope& scope, std::vector<std::string>* o) -> Task<> {
              scope.spawn("b", &work, o, "b", 2s, scope.stop_token());
              scope.spawn("a", &work, o, "a", 1s, scope.stop_token());
              co_return;
            },
            out);
        out->push_back("joined");
      },
      &log);
  EXPECT_EQ(log, (std::vector<std::string>{"a done", "b done", "joined"}));
}

TEST_F(ScopeTest, ReturnsTheBodysValue) {
  EXPECT_EQ(loop.run([]() -> Task<int> {
    co_return co_await with_scope([](Scope&, int x) -> Task<int> { co_return x; }, 5);
  }),
            5);
}

TEST_F(ScopeTest, FirstFailureStopsTheSiblingsAndIsRethrownAfterAllEnded) {
  std::string caught;
  loop.run(
      [](std::vector<std::string>* out, std::string* error) -> Task<> {
        try {
          co_await with_scope(
              [](Scope& scope, std::vector<std::string>* o) -> Task<> {
                scope.spawn("slow", &work, o, "slow", 1h, scope.stop_token());
                scope.spawn("deaf", &work, o, "deaf", 3s, StopToken());
                scope.spawn("first", &fail_after, 1s, "first");
                scope.spawn("second", &fail_after, 2s, "second");
                co_return;
              },
              out);
        } catch (const std::runtime_error& e) {
          *error = e.what();
        }
        out->push_back("caught");
      },
      &log, &caught);
  EXPECT_EQ(caught, "first");
  EXPECT_EQ(log, (std::vector<std::string>{"slow stopped", "deaf done", "caught"}));
}

TEST_F(ScopeTest, KeepsEveryFailureInOrder) {
  Scope scope(loop, "all");
  scope.spawn("one", &fail_after, 1s, "1");
  scope.spawn("two", &fail_after, 2s, "2");
  EXPECT_THROW(loop.run(&Scope::join, &scope), std::runtime_error);
  ASSERT_EQ(scope.failures().size(), 2U);
  EXPECT_STREQ(scope.failures()[0].task, "one");
  EXPECT_STREQ(scope.failures()[1].task, "two");
  EXPECT_TRUE(scope.stop_requested());
}

TEST_F(ScopeTest, AFailingBodyStopsItsTasks) {
  EXPECT_THROW(loop.run(
                   [](std::vector<std::string>* out) -> Task<> {
                     co_await with_scope(
                         [](Scope& scope, std::vector<std::string>* o) -> Task<> {
                           scope.spawn("task", &work, o, "task", 1h, scope.stop_token());
                           co_await yield();
                           throw std::logic_error("body");
                         },
                         out);
                   },
                   &log),
               std::logic_error);
  EXPECT_EQ(log, (std::vector<std::string>{"task stopped"}));
}

TEST_F(ScopeTest, StopOfTheOuterScopeReachesTheInner) {
  Scope outer(loop, "outer");
  outer.spawn(
      "holder",
      [](std::vector<std::string>* out) -> Task<> {
        co_await with_scope(
            [](Scope& inner, std::vector<std::string>* o) -> Task<> {
              inner.spawn("task", &work, o, "task", 1h, inner.stop_token());
              co_return;
            },
            out);
        out->push_back("holder done");
      },
      &log);
  loop.run(
      [](Scope* scope) -> Task<> {
        co_await yield();
        co_await yield();
        scope->request_stop();
        co_await scope->join();
      },
      &outer);
  EXPECT_EQ(log, (std::vector<std::string>{"task stopped", "holder done"}));
  EXPECT_TRUE(outer.failures().empty());
}

TEST_F(ScopeTest, CurrentStopTokenIsTheScopesOwn) {
  Scope scope(loop);
  scope.spawn(
      "asks",
      [](std::vector<std::string>* out) -> Task<> {
        const StopToken token = co_await current_stop_token();
        co_await work(out, "asks", 1h, token);
      },
      &log);
  loop.run(
      [](Scope* s) -> Task<> {
        co_await yield();
        s->request_stop();
        co_await s->join();
      },
      &scope);
  EXPECT_EQ(log, (std::vector<std::string>{"asks stopped"}));
}

TEST_F(ScopeTest, AnActorThatEndedFirstIsNoFailureOfAScopeThatStops) {
  struct Ping {
    using Reply = int;
  };
  struct Server : Actor<Server, Ping> {
    void handle(Ping, ReplyTo<Ping> reply) { waiting.push_back(std::move(reply)); }
    std::vector<ReplyTo<Ping>> waiting;
  };
  Server server;
  Scope scope(loop);
  server.start(scope);
  scope.spawn(
      "client", [](Server* s) -> Task<> { (void)co_await s->address().ask(Ping()); }, &server);
  loop.run(
      [](Scope* s) -> Task<> {
        co_await sleep_for(1ms);
        s->request_stop();
        co_await s->join();  // a failure would be rethrown
      },
      &scope);
  EXPECT_TRUE(scope.failures().empty());
}

TEST_F(ScopeTest, StoppedWithoutARequestIsAFailure) {
  Scope scope(loop);
  scope.spawn("odd", []() -> Task<> {
    throw Stopped();
    co_return;
  });
  EXPECT_THROW(loop.run(&Scope::join, &scope), Stopped);
}

TEST_F(ScopeTest, LivesAcrossRuns) {
  Scope scope(loop, "long");
  scope.spawn("a", &work, &log, "a", 5s, scope.stop_token());
  loop.run([]() -> Task<> { co_await sleep_for(1s); });
  EXPECT_EQ(scope.running(), 1U);
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(scope.running(), 0U);
  EXPECT_EQ(log, (std::vector<std::string>{"a done"}));
}

TEST_F(ScopeTest, ArgumentsLiveUntilTheTaskIsDone) {
  Scope scope(loop);
  auto shared = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = shared;
  scope.spawn(
      "holder", [](std::shared_ptr<int>) -> Task<> { co_await sleep_for(1s); }, std::move(shared));
  loop.run([]() -> Task<> { co_await sleep_for(500ms); });
  EXPECT_FALSE(watch.expired());
  loop.run(&Scope::join, &scope);
  EXPECT_TRUE(watch.expired());
}

TEST_F(ScopeTest, StopFromAnotherThread) {
  Scope scope(loop);
  scope.spawn("task", &work, &log, "task", 1h, scope.stop_token());
  loop.run([]() -> Task<> { co_await yield(); });
  const StopHandle handle = scope.stop_handle();
  std::thread([handle] {
    handle.request_stop();
    handle.request_stop();
  }).join();
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(log, (std::vector<std::string>{"task stopped"}));
}

TEST_F(ScopeTest, AStopHandleOutlivesItsScope) {
  auto scope = std::make_unique<Scope>(loop);
  const StopHandle handle = scope->stop_handle();
  scope.reset();
  handle.request_stop();
  loop.run([]() -> Task<> { co_await yield(); });
}

TEST(ScopeDeathTest, DiesEmpty) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop;
        Event never;
        Scope scope(loop, "leaky");
        scope.spawn("stuck", [](Event* event) -> Task<> { co_await *event; }, &never);
        loop.run([]() -> Task<> { co_await yield(); });
        scope.~Scope();
      },
      "stuck .*event.*\n.*a scope died before its tasks");
}

TEST(Scope, ATaskThatJoinsItsOwnScopeIsToldSo) {
  EventLoop loop;
  Scope scope(loop, "circle");
  scope.spawn("joins", [](Scope* own) -> Task<> { co_await own->join(); }, &scope);
  try {
    loop.run(&Scope::join, &scope);
    FAIL() << "it was joined";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("circle is joined by a task of its own"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tandem
