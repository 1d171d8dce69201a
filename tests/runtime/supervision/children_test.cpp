#include "runtime/supervision/children.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/supervision/monitor.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
struct Add {
  int value;
};
struct Sum {
  using Reply = int;
};
struct Fail {
  std::string text;
};
struct FailDevice {};
struct FailAsk {
  using Reply = int;
};
struct Owe {
  using Reply = int;
};
struct Nap {};
struct SpawnHelper {};
struct Finish {};

// The fixture's record of the workers' lives.
struct Book {
  int made = 0;
  int destroyed = 0;
  int closed = 0;
  int refuse_from = 1000;  // the constructor throws from this one on
  std::vector<std::string> events;
};

struct Worker : Actor<Worker, Add, Sum, Fail, FailDevice, FailAsk, Owe, Nap, SpawnHelper, Finish> {
  Worker(Book* book_in, std::string label_in)
      : Actor(std::string_view(label_in)), book(book_in), label(std::move(label_in)) {
    if (++book->made >= book->refuse_from) {
      throw std::runtime_error("cannot be made");
    }
  }
  ~Worker() {
    ++book->destroyed;
    book->events.push_back(label + " gone");
  }
  void on_start() { book->events.push_back(label + " on"); }
  void on_close() { ++book->closed; }
  void handle(Add m) { sum += m.value; }
  int handle(Sum) { return sum; }
  void handle(Fail m) { throw std::runtime_error(m.text); }
  void handle(FailDevice) {
    throw device_error("gpu 0", "the context is gone; restart the process");
  }
  int handle(FailAsk) { throw std::logic_error("asked"); }
  void handle(Owe, ReplyTo<Owe> reply) { pending.push_back(std::move(reply)); }
  Task<> handle(Nap) { co_await sleep_for(1s); }
  void handle(SpawnHelper) {
    scope().spawn(
        "helper",
        [](Worker* self, StopToken stop) -> Task<> {
          co_await sleep_for(3s, stop);
          self->sum = -1;
          throw std::runtime_error("the helper failed");
        },
        this, scope().stop_token());
  }
  void handle(Finish) { close(); }

  Book* book;
  std::string label;
  int sum = 0;
  std::vector<ReplyTo<Owe>> pending;
};
using WorkerAddress = Worker::AddressType;

struct Start {
  using Reply = WorkerAddress;
  std::string label;
};
struct Boss : Actor<Boss, Start> {
  Boss(Book* book_in, Children::Options options, OnExit verdict_in = OnExit::kRestart)
      : Actor("boss"), book(book_in), verdict(verdict_in), children(*this, options) {}
  WorkerAddress handle(Start r) { return children.start<Worker>(book, r.label); }
  OnExit on_child_exit(const ExitReason& reason) {
    book->events.push_back(reason.text());
    return verdict;
  }
  Book* book;
  OnExit verdict;
  Children children;
};

class ChildrenTest : public ::testing::Test {
 protected:
  void make_boss(Children::Options options = {}, OnExit verdict = OnExit::kRestart) {
    boss = std::make_unique<Boss>(&book, options, verdict);
    boss->start(scope);
  }
  WorkerAddress child(std::string label = "worker") {
    return loop.run(
        [](Boss::AddressType to, std::string name) -> Task<WorkerAddress> {
          co_return co_await to.ask(Start{name});
        },
        boss->address(), label);
  }
  void settle(Duration time = 1ms) {
    loop.run([](Duration t) -> Task<> { co_await sleep_for(t); }, time);
  }
  int sum_of(const WorkerAddress& address) {
    return loop.run([](WorkerAddress to) -> Task<int> { co_return co_await to.ask(Sum{}); },
                    address);
  }
  std::string join() {
    try {
      loop.run(&Scope::join, &scope);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
  void TearDown() override {
    if (boss != nullptr && !boss->ended()) {
      boss->close();
      EXPECT_EQ(join(), "");
    }
    boss.reset();
    EXPECT_EQ(book.made - (book.made >= book.refuse_from ? 1 : 0), book.destroyed);
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  Scope scope{loop, "root"};
  Book book;
  std::unique_ptr<Boss> boss;
};

TEST_F(ChildrenTest, ARestartIsFreshStateBehindTheSameAddressAndWaitingMessagesSurvive) {
  make_boss();
  const WorkerAddress worker = child();
  (void)worker.try_send(Add{1});
  (void)worker.try_send(Fail{"bad"});
  (void)worker.try_send(Add{20});
  (void)worker.try_send(Add{300});
  settle();
  EXPECT_EQ(sum_of(worker), 320);
  EXPECT_EQ(book.made, 2);
  EXPECT_EQ(book.closed, 1);
  EXPECT_EQ(boss->children.restarts(), 1U);
  EXPECT_FALSE(worker.closed());
  EXPECT_EQ(book.events, (std::vector<std::string>{"worker on", "worker failed at Fail: bad",
                                                   "worker gone", "worker on"}));
}

TEST_F(ChildrenTest, AnAskThatFailsGetsItsErrorAndPendingReplysFail) {
  make_boss();
  const WorkerAddress worker = child();
  std::vector<std::string> errors;
  auto ask = []<class R>(WorkerAddress to, std::vector<std::string>* out, R request) -> Task<> {
    try {
      (void)co_await to.ask(std::move(request));
    } catch (const std::exception& error) {
      out->push_back(error.what());
    }
  };
  scope.spawn("a", ask, worker, &errors, Owe{});
  scope.spawn("b", ask, worker, &errors, FailAsk{});
  settle();
  EXPECT_EQ(errors,
            (std::vector<std::string>{"asked", "[actor] Owe was dropped without an answer"}));
  EXPECT_EQ(sum_of(worker), 0);
}

TEST_F(ChildrenTest, StopEndsTheChildAndOnlyIt) {
  make_boss({}, OnExit::kStop);
  const WorkerAddress first = child("first");
  const WorkerAddress second = child("second");
  (void)first.try_send(Fail{"bad"});
  (void)first.try_send(Add{1});
  settle();
  EXPECT_TRUE(first.closed());
  EXPECT_EQ(first.depth(), 0U);
  EXPECT_EQ(boss->children.running(), 1U);
  EXPECT_EQ(sum_of(second), 0);
}

TEST_F(ChildrenTest, EscalateFailsTheScopeWithTheChildsErrorAndItsName) {
  make_boss({}, OnExit::kEscalate);
  const WorkerAddress first = child("first");
  const WorkerAddress second = child("second");
  (void)first.try_send(Fail{"bad"});
  EXPECT_EQ(join(), "bad");
  ASSERT_EQ(scope.failures().size(), 1U);
  EXPECT_STREQ(scope.failures()[0].task, "first");
  EXPECT_STREQ(scope.failures()[0].message, "Fail");
  EXPECT_TRUE(boss->ended());
  EXPECT_TRUE(second.closed());
}

TEST_F(ChildrenTest, TooManyRestartsWithinTheTimeEscalate) {
  make_boss({.limit = {.most = 2, .within = 10s}});
  const WorkerAddress worker = child();
  for (int i = 0; i < 3; ++i) {  // one per 6 s is within the limit for ever
    (void)worker.try_send(Fail{"slow"});
    settle(6s);
  }
  EXPECT_EQ(boss->children.restarts(), 3U);
  settle(20s);
  for (int i = 0; i < 3; ++i) {
    (void)worker.try_send(Fail{"quick"});
  }
  EXPECT_EQ(
      join(),
      "[actor] worker failed at Fail: quick; 2 restarts within 10 s are allowed; mend the cause");
  EXPECT_EQ(boss->children.restarts(), 5U);
}

TEST_F(ChildrenTest, DeviceErrorsEscalateUnasked) {
  make_boss();
  const WorkerAddress worker = child();
  book.events.clear();
  (void)worker.try_send(FailDevice{});
  EXPECT_EQ(join(), "[gpu 0] the context is gone; restart the process");
  EXPECT_EQ(book.events, (std::vector<std::string>{"worker gone"}));
  EXPECT_EQ(boss->children.restarts(), 0U);
}

TEST_F(ChildrenTest, AFailedHelperTaskIsTheChildsFailureAndEndsBeforeTheRestart) {
  make_boss();
  const WorkerAddress worker = child();
  (void)worker.try_send(SpawnHelper{});
  (void)worker.try_send(Add{5});
  settle(4s);
  EXPECT_EQ(book.events[1], "worker failed in helper: the helper failed");
  EXPECT_EQ(sum_of(worker), 0);
  // The other way round: the helper sleeps when the actor fails; it is told to stop, and never
  // touches the old state.
  (void)worker.try_send(SpawnHelper{});
  (void)worker.try_send(Fail{"bad"});
  settle(5s);
  EXPECT_EQ(book.events.back(), "worker on");
  EXPECT_EQ(boss->children.restarts(), 2U);
  EXPECT_EQ(sum_of(worker), 0);
}

TEST_F(ChildrenTest, AClosedChildIsNotRestarted) {
  make_boss();
  const WorkerAddress worker = child();
  (void)worker.try_send(SpawnHelper{});
  (void)worker.try_send(Finish{});
  settle();
  EXPECT_EQ(book.events, (std::vector<std::string>{"worker on", "worker ended", "worker gone"}));
  EXPECT_EQ(boss->children.running(), 0U);
}

TEST_F(ChildrenTest, AConstructorThatThrowsAtARestartIsAFailure) {
  make_boss({.limit = {.most = 3}});
  const WorkerAddress worker = child();
  book.refuse_from = 3;
  (void)worker.try_send(Fail{"one"});
  (void)worker.try_send(Fail{"two"});
  book.events.clear();
  settle();
  EXPECT_EQ(join().substr(0, 45), "[actor] worker failed: cannot be made; 3 rest");
  EXPECT_EQ(book.made, 4);
  book.refuse_from = 3;
  book.destroyed += 1;  // two were not made
}

TEST_F(ChildrenTest, AConstructorThatThrowsAtTheStartIsTheCallersError) {
  Children children(scope);
  book.refuse_from = 1;
  EXPECT_THROW((void)children.start<Worker>(&book, std::string("never")), std::runtime_error);
  EXPECT_EQ(children.running(), 0U);
  loop.run(&Scope::join, &scope);
}

TEST_F(ChildrenTest, AllForOneRestartsTheSiblingsInTheOrderOfTheirStarts) {
  make_boss({.strategy = Children::Strategy::kAllForOne});
  const WorkerAddress a = child("a");
  const WorkerAddress b = child("b");
  const WorkerAddress c = child("c");
  (void)a.try_send(Add{1});
  (void)c.try_send(Nap{});
  settle();
  book.events.clear();
  (void)a.try_send(Add{2});
  (void)b.try_send(Fail{"bad"});
  (void)c.try_send(Add{4});  // while it naps: it is taken by the fresh state
  settle(2s);
  EXPECT_EQ(book.events, (std::vector<std::string>{"b failed at Fail: bad", "c gone", "b gone",
                                                   "a gone", "a on", "b on", "c on"}));
  EXPECT_EQ(sum_of(a), 0);
  EXPECT_EQ(sum_of(c), 4);
  EXPECT_EQ(boss->children.restarts(), 1U);
}

TEST_F(ChildrenTest, AllForOneTakesTwoFailuresAtOnceForOne) {
  make_boss({.strategy = Children::Strategy::kAllForOne});
  const WorkerAddress a = child("a");
  const WorkerAddress b = child("b");
  (void)a.try_send(Fail{"first"});
  (void)b.try_send(Fail{"second"});
  settle();
  EXPECT_EQ(boss->children.restarts(), 1U);
  (void)a.try_send(Add{1});
  (void)b.try_send(Add{2});
  EXPECT_EQ(sum_of(a) + sum_of(b), 3);
}

TEST_F(ChildrenTest, ChildrenEndWithTheirParent) {
  make_boss();
  const WorkerAddress worker = child();
  (void)worker.try_send(Nap{});
  settle();
  boss->close();
  EXPECT_EQ(join(), "");
  EXPECT_TRUE(worker.closed());
  EXPECT_EQ(boss->children.running(), 0U);
}

// A tree: root scope -> boss of bosses -> boss -> worker.
struct Chief : Actor<Chief, Start> {
  Chief(Book* book_in, OnExit of_boss_in) : Actor("chief"), book(book_in), of_boss(of_boss_in) {}
  void on_start() { boss = children.start<Boss>(book, Children::Options{}, OnExit::kEscalate); }
  Task<WorkerAddress> handle(Start r) { co_return co_await boss.ask(r); }
  OnExit on_child_exit(const ExitReason& reason) {
    book->events.push_back(reason.text());
    return of_boss;
  }
  Book* book;
  OnExit of_boss;
  Boss::AddressType boss;
  Children children{*this};
};

TEST_F(ChildrenTest, EscalationGoesUpOneLevelAtATime) {
  Chief chief(&book, OnExit::kRestart);
  chief.start(scope);
  auto start = [](Chief::AddressType to, std::string name) -> Task<WorkerAddress> {
    co_return co_await to.ask(Start{name});
  };
  const WorkerAddress worker = loop.run(start, chief.address(), "worker");
  book.events.clear();
  (void)worker.try_send(Fail{"bad"});
  settle();
  EXPECT_EQ(book.events, (std::vector<std::string>{"worker failed at Fail: bad", "worker gone",
                                                   "boss failed in worker at Fail: bad"}));
  EXPECT_TRUE(worker.closed());
  EXPECT_FALSE(chief.boss.closed());  // a fresh boss behind the same address
  const WorkerAddress again = loop.run(start, chief.address(), "again");
  EXPECT_EQ(sum_of(again), 0);
  (void)again.try_send(FailDevice{});
  EXPECT_EQ(join(), "[gpu 0] the context is gone; restart the process");
  EXPECT_TRUE(chief.ended());
}

TEST_F(ChildrenTest, WithoutAParentActorFailuresRestartAndEscalateToTheScope) {
  Children children(scope, {.limit = {.most = 1}});
  const WorkerAddress worker = children.start<Worker>(&book, std::string("worker"));
  (void)worker.try_send(Fail{"one"});
  settle();
  EXPECT_EQ(sum_of(worker), 0);
  (void)worker.try_send(Fail{"two"});
  EXPECT_NE(join().find("worker failed at Fail: two; 1 restarts within 10 s"), std::string::npos);
  EXPECT_TRUE(worker.closed());
}

// ---- monitors
struct Guard : Actor<Guard, Down> {
  Guard() : Actor("guard", 1) {}
  void handle(Down down) { seen.push_back(std::string(down.name) + ": " + down.reason.text()); }
  std::vector<std::string> seen;
};

class MonitorTest : public ChildrenTest {
 protected:
  void SetUp() override { guard.start(guards); }
  void TearDown() override {
    guard.close();
    loop.run(&Scope::join, &guards);
    ChildrenTest::TearDown();
  }
  Scope guards{loop, "guards"};
  Guard guard;
};

TEST_F(MonitorTest, DownSaysWhoAndWhyOnceAndAtOnceIfItIsGone) {
  make_boss({}, OnExit::kStop);
  const WorkerAddress worker = child();
  const Watch watch_it = watch(worker, guard.address());
  const Watch watch_boss = watch(boss->address(), guard.address());
  (void)worker.try_send(Fail{"bad"});
  settle();
  const std::string why = "worker: worker failed at Fail: bad";
  EXPECT_EQ(guard.seen, (std::vector<std::string>{why}));
  const Watch late = watch(worker, guard.address());
  const Watch absent = watch(WorkerAddress(), guard.address());
  settle();
  EXPECT_EQ(guard.seen, (std::vector<std::string>{why, why, "no actor: no actor ended"}));
  boss->close();
  EXPECT_EQ(join(), "");
  settle();
  EXPECT_EQ(guard.seen.back(), "boss: boss ended");
}

TEST_F(MonitorTest, ARestartIsNoEnd) {
  make_boss();
  const WorkerAddress worker = child();
  const Watch watch_it = watch(worker, guard.address());
  (void)worker.try_send(Fail{"bad"});
  settle();
  EXPECT_TRUE(guard.seen.empty());
  scope.request_stop();
  EXPECT_EQ(join(), "");
  settle();
  EXPECT_EQ(guard.seen, (std::vector<std::string>{"worker: worker was stopped"}));
}

TEST_F(MonitorTest, NothingComesAfterUnwatch) {
  make_boss({}, OnExit::kStop);
  const WorkerAddress worker = child();
  Watch first = watch(worker, guard.address());
  {
    const Watch dies = watch(worker, guard.address());
  }
  Watch moved = std::move(first);
  EXPECT_FALSE(first.watching());  // NOLINT: moved from on purpose
  EXPECT_TRUE(moved.unwatch());
  EXPECT_FALSE(moved.unwatch());
  (void)worker.try_send(Fail{"bad"});
  settle();
  EXPECT_TRUE(guard.seen.empty());
}

TEST_F(MonitorTest, AFullWatcherLosesNoDown) {
  make_boss({}, OnExit::kStop);
  std::vector<Watch> watches;
  for (const char* name : {"a", "b", "c"}) {
    const WorkerAddress worker = child(name);
    watches.push_back(watch(worker, guard.address()));
    (void)worker.try_send(Finish{});
  }
  settle();
  EXPECT_EQ(guard.seen, (std::vector<std::string>{"a: a ended", "b: b ended", "c: c ended"}));
}

TEST_F(MonitorTest, AWatcherThatHasEndedIsNoTrouble) {
  make_boss({}, OnExit::kStop);
  const WorkerAddress worker = child();
  const Watch watch_it = watch(worker, guard.address());
  guard.close();
  loop.run(&Scope::join, &guards);
  const Watch late = watch(worker, guard.address());
  (void)worker.try_send(Fail{"bad"});
  settle();
  EXPECT_TRUE(worker.closed());
}

TEST_F(MonitorTest, AWatchAcrossLoops) {
  make_boss({}, OnExit::kStop);
  const WorkerAddress worker = child();
  std::thread([&] {
    EventLoop other({.name = "other"});
    Scope there(other, "there");
    Guard far;
    far.start(there);
    {
      Watch unwatched = watch(worker, far.address());
      const Watch watched = watch(worker, far.address());
      EXPECT_TRUE(unwatched.unwatch());
      (void)worker.try_send(Fail{"bad"});
      std::thread runs([&] { settle(); });
      other.run(
          [](Guard* g) -> Task<> {
            while (g->seen.empty()) {
              co_await yield();
            }
          },
          &far);
      runs.join();
    }
    far.close();
    other.run(&Scope::join, &there);
    EXPECT_EQ(far.seen, (std::vector<std::string>{"worker: worker failed at Fail: bad"}));
  }).join();
}

}  // namespace
}  // namespace tandem
