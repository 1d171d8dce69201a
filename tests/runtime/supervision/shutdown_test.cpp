#include "runtime/supervision/shutdown.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/supervision/children.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Job {
  int value;
};
struct Worker : Actor<Worker, Job> {
  explicit Worker(Duration each_in) : Actor("worker"), each(each_in) {}
  Task<> handle(Job m) {
    co_await sleep_for(each);
    done.push_back(m.value);
  }
  Duration each;
  std::vector<int> done;
};

class ShutdownTest : public ::testing::Test {
 protected:
  Shutdown::Report shut_down(Shutdown* shutdown) {
    return loop.run([](Shutdown* s) -> Task<Shutdown::Report> { co_return co_await s->run(); },
                    shutdown);
  }
  void settle() {
    loop.run([]() -> Task<> { co_await sleep_for(1us); });
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  Scope root{loop, "root"};
};

Task<> wait_for(Event* event) { co_await *event; }
Task<> sleep_until_stopped(StopToken stop) { co_await sleep_for(1h, stop); }

TEST_F(ShutdownTest, HandlesWhatWasAcceptedThenStopsTheRest) {
  Worker worker(10ms);
  worker.start(root);
  root.spawn("background", &sleep_until_stopped, root.stop_token());
  for (int i = 0; i < 3; ++i) {
    (void)worker.address().try_send(Job{i});
  }
  settle();
  Shutdown shutdown(root, {.handle = 1s, .drain = 5s});
  std::string order;
  shutdown.then(
      "abort", 1s,
      [](std::string* out) -> Task<> {
        *out += "abort ";
        co_return;
      },
      &order);
  shutdown.then(
      "join pools", 1s,
      [](std::string* out) -> Task<> {
        *out += "join";
        co_return;
      },
      &order);
  const Shutdown::Report report = shut_down(&shutdown);
  EXPECT_TRUE(report.clean);
  EXPECT_EQ(worker.done, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(worker.address().try_send(Job{3}), SendResult::kClosed);
  EXPECT_EQ(order, "abort join");
  std::vector<std::string> names;
  for (const Shutdown::Phase& phase : report.phases) {
    names.emplace_back(phase.name);
    EXPECT_TRUE(phase.done) << phase.left;
    EXPECT_LE(phase.took, phase.limit);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"intake", "stop", "abort", "join pools", "rest"}));
  EXPECT_GE(report.phases[0].took, 29ms);
  EXPECT_NE(report.text().find("abort: done in 0.000 s of 1 s\n"), std::string::npos)
      << report.text();
  EXPECT_EQ(root.running(), 0U);
}

struct Parent : Actor<Parent, Job> {
  void on_start() { child = children.start<Worker>(Duration(1ms)); }
  void handle(Job) {}
  Children children{*this};
  Worker::AddressType child;
};

TEST_F(ShutdownTest, LeavesTheActorsOfOtherScopesAlone) {
  Scope other(loop, "other");
  Scope below(loop, "below", root.stop_token());
  Worker& apart = other.start<Worker>(Duration(1ms));
  Worker& nested = below.start<Worker>(Duration(1ms));
  Parent& parent = root.start<Parent>();
  settle();
  Shutdown shutdown(root, {.handle = 1s, .drain = 5s});
  EXPECT_TRUE(shut_down(&shutdown).clean);
  EXPECT_TRUE(parent.ended());
  EXPECT_TRUE(parent.child.closed());
  EXPECT_TRUE(nested.address().closed());
  EXPECT_EQ(apart.address().try_send(Job{1}), SendResult::kSent);
  loop.run(&Scope::join, &other);
  loop.run(&Scope::join, &below);
  EXPECT_EQ(apart.done, (std::vector<int>{1}));
}

TEST_F(ShutdownTest, MessagesThatTakeTooLongAreDroppedAtTheStop) {
  Worker worker(400ms);
  worker.start(root);
  for (int i = 0; i < 10; ++i) {
    (void)worker.address().try_send(Job{i});
  }
  settle();
  Shutdown shutdown(root, {.handle = 1s, .drain = 5s});
  const Shutdown::Report report = shut_down(&shutdown);
  EXPECT_TRUE(report.clean);
  EXPECT_FALSE(report.phases[0].done);
  EXPECT_EQ(report.phases[0].took, 1s);
  EXPECT_NE(report.phases[0].left.find("actor worker: 7 messages wait"), std::string::npos)
      << report.phases[0].left;
  EXPECT_EQ(worker.done.size(), 3U);
}

TEST_F(ShutdownTest, AnAbortSetsFreeWhatDidNotStop) {
  Event reply;
  root.spawn("stuck", &wait_for, &reply);
  settle();
  Shutdown shutdown(root, {.handle = 0s, .drain = 2s});
  shutdown.then(
      "abort comms", 1s,
      [](Event* event) -> Task<> {
        event->set();
        co_return;
      },
      &reply);
  const Shutdown::Report report = shut_down(&shutdown);
  EXPECT_TRUE(report.clean);
  EXPECT_FALSE(report.phases[1].done);
  EXPECT_EQ(report.phases[1].took, 2s);
  EXPECT_NE(report.phases[1].left.find("stuck"), std::string::npos);
  EXPECT_NE(report.phases[1].left.find("wait_for (supervision/shutdown_test.cpp:"),
            std::string::npos)
      << report.phases[1].left;
}

TEST_F(ShutdownTest, WhatRemainsIsAClearErrorWithItsAwaitChain) {
  Event never;
  root.spawn("stuck", &wait_for, &never);
  Event phase_never;
  Shutdown shutdown(root, {.handle = 0s, .drain = 2s, .rest = 1s});
  shutdown.then("abort comms", 1s, &wait_for, &phase_never);
  shutdown.then("fails", 1s, []() -> Task<> {
    throw std::runtime_error("no driver");
    co_return;
  });
  try {
    (void)shut_down(&shutdown);
    FAIL() << "it was clean";
  } catch (const Shutdown::Incomplete& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.substr(0, 49), "[shutdown] tasks still run after all phases; they");
    EXPECT_NE(text.find("stop: not done in 2.000 s of 2 s\nscope \"root\": 1 running, asked to "
                        "stop\n  stuck ("),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("wait_for (supervision/shutdown_test.cpp:45, 4.0"), std::string::npos)
        << text;
    EXPECT_NE(text.find(" <- [event]\n"), std::string::npos) << text;
    EXPECT_NE(text.find("abort comms: not done in"), std::string::npos) << text;
    EXPECT_NE(text.find("fails failed: no driver\n"), std::string::npos) << text;
    EXPECT_FALSE(error.report().clean);
  }
  never.set();
  phase_never.set();
  settle();
}

}  // namespace
}  // namespace tandem
