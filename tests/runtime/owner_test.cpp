// Owners of an actor, and errors and exceptions that pass them: nothing is lost, and the process
// does not end because of it.
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/std_stop.hpp"
#include "runtime/util/build.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Deposit {
  int cents;
};
struct Balance {
  using Reply = int;
};
struct Account : Actor<Account, Deposit, Balance> {
  explicit Account(std::vector<std::string>* out = nullptr, std::string as = "account")
      : log(out), name(std::move(as)) {}
  ~Account() {
    if (log != nullptr) {
      log->push_back(name + " died");
    }
  }
  void handle(Deposit m) { cents += m.cents; }
  Task<int> handle(Balance) {
    co_await sleep_for(work);
    co_return cents;
  }
  void on_close() {
    if (log != nullptr) {
      log->push_back(name + " closed");
    }
  }
  int cents = 0;
  Duration work = 5ms;
  std::vector<std::string>* log;
  std::string name;
};

Task<int> save_up(Account::AddressType account, Duration patience) {
  co_await account.send(Deposit{500});
  co_return co_await account.ask(Balance{}, patience);
}

TEST(Owner, AScopeClosesAndJoinsItsActorsTheNewestFirst) {
  std::vector<std::string> log;
  {
    EventLoop loop;
    Scope scope(loop, "actors");
    Account& first = scope.start<Account>(&log, "first");
    scope.start<Account>(&log, "second");
    EXPECT_EQ(loop.run(&save_up, first.address(), Duration(1s)), 500);
    loop.run(&Scope::join, &scope);
    EXPECT_TRUE(first.ended());
  }
  EXPECT_EQ(log, (std::vector<std::string>{"second closed", "first closed", "second died",
                                           "first died"}));
}

TEST(Owner, TasksOfTheScopeEndBeforeItsActorsAreClosed) {
  EventLoop loop;
  EXPECT_EQ(loop.run([]() -> Task<int> {
    int balance = 0;
    co_await with_scope(
        [](Scope& scope, int* out) -> Task<> {
          Account& account = scope.start<Account>();
          scope.spawn(
              "later",
              [](Account::AddressType to, int* into) -> Task<> {
                co_await sleep_for(3ms);
                *into = co_await save_up(to, 1s);
              },
              account.address(), out);
          co_return;
        },
        &balance);
    co_return balance;
  }),
            500);
}

TEST(Owner, AnExceptionPassesAndTheActorsEndBeforeTheyDie) {
  std::vector<std::string> log;
  EXPECT_THROW(
      {
        EventLoop loop;
        Scope scope(loop, "actors");
        Account& account = scope.start<Account>(&log);
        (void)loop.run(&save_up, account.address(), Duration(1ms));
      },
      DeadlineExceeded);
  EXPECT_EQ(log, (std::vector<std::string>{"account closed", "account died"}));
}

TEST(Owner, AnExceptionPassesAnActorOfOnesOwnThatWaits) {
  try {
    EventLoop loop;
    Scope scope(loop, "actors");
    Account account;
    account.start(scope);
    EXPECT_EQ(loop.run(&save_up, account.address(), Duration(1min)), 500);
    throw std::out_of_range("after the answer");
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "after the answer");
  }
}

// Its handler can't go on, and so its loop can't: what they hold is lost, which LeakSanitizer sees.
TEST(Owner, AnExceptionPassesAnActorOfOnesOwnThatHandles) {
  if (kAddressSanitizer) {
    GTEST_SKIP() << "the handler's frame is leaked on purpose";
  }
  testing::internal::CaptureStderr();
  try {
    EventLoop loop;
    Scope scope(loop, "actors");
    Account account;
    account.work = 1h;
    account.start(scope);
    (void)loop.run(&save_up, account.address(), Duration(1ms));
    ADD_FAILURE() << "it was answered";
  } catch (const DeadlineExceeded& error) {
    EXPECT_NE(std::string(error.what()).find("was not answered by"), std::string::npos);
  }
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Account"), std::string::npos);
}

TEST(Owner, AnExceptionPassesAScopeWithTasks) {
  bool ended = false;
  EXPECT_THROW(
      {
        EventLoop loop;
        Scope scope(loop, "tasks");
        scope.spawn(
            "waits",
            [](bool* out) -> Task<> {
              try {
                co_await sleep_for(1h, co_await current_stop_token());
              } catch (const Stopped&) {
                *out = true;
              }
            },
            &ended);
        loop.run([]() -> Task<> {
          co_await yield();
          throw std::out_of_range("main");
        });
      },
      std::out_of_range);
  EXPECT_TRUE(ended);
}

struct Work {};
struct Worker : Actor<Worker, Work> {
  void handle(Work) { throw std::out_of_range("bad work"); }
  void on_close() { throw std::runtime_error("and no end"); }
};

TEST(Owner, AFailureThatNothingTookIsSaid) {
  testing::internal::CaptureStderr();
  {
    EventLoop loop;
    Scope scope(loop, "jobs");
    scope.spawn("job", []() -> Task<> {
      co_await yield();
      throw std::out_of_range("disk full");
    });
    Scope actors(loop, "actors");
    Worker& worker = actors.start<Worker>();
    EXPECT_EQ(worker.address().try_send(Work{}), SendResult::kSent);
    loop.run(
        [](Scope* one, Scope* other) -> Task<> {
          co_await one->empty();
          co_await other->empty();
        },
        &scope, &actors);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("task \"job\" failed, and nothing took the error: disk full"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("bad work"), std::string::npos) << said;
  EXPECT_NE(said.find("and no end"), std::string::npos) << said;
}

TEST(Owner, AFailureThatWasTakenIsNotSaidAgain) {
  testing::internal::CaptureStderr();
  {
    EventLoop loop;
    Scope scope(loop, "jobs");
    scope.spawn("job", []() -> Task<> {
      co_await yield();
      throw std::out_of_range("disk full");
    });
    EXPECT_THROW(loop.run(&Scope::join, &scope), std::out_of_range);
    Scope looked(loop, "jobs");
    looked.spawn("job", []() -> Task<> {
      co_await yield();
      throw std::out_of_range("disk full");
    });
    loop.run([](Scope* s) -> Task<> { co_await s->empty(); }, &looked);
    EXPECT_EQ(looked.failures().size(), 1U);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Owner, ATokenThatOutlivesItsSourceSaysWhatItSaidLast) {
  EventLoop loop;
  StopToken stopped;
  StopToken quiet;
  {
    Scope one(loop, "one");
    Scope other(loop, "other");
    stopped = one.stop_token();
    quiet = other.stop_token();
    one.request_stop();
  }
  EXPECT_TRUE(stopped.stop_requested());
  EXPECT_FALSE(quiet.stop_requested());
  loop.run([](StopToken token) -> Task<> { co_await sleep_for(1ms, token); }, quiet);
}

TEST(Owner, AScopeMayOutliveTheOneThatItStopsWith) {
  EventLoop loop;
  auto outer = std::make_unique<Scope>(loop, Name("outer"));
  Scope inner(loop, "inner", outer->stop_token());
  const StdStop std_token(outer->stop_token());
  inner.spawn(
      "waits", [](StopToken stop) -> Task<> { co_await sleep_for(1h, stop); }, inner.stop_token());
  loop.run([]() -> Task<> { co_await yield(); });
  const StopToken above = outer->stop_token();
  outer.reset();
  EXPECT_FALSE(inner.stop_requested());
  EXPECT_FALSE(inner.stop_token().stops_with(above));
  EXPECT_FALSE(std_token.token().stop_requested());
  inner.request_stop();
  loop.run(&Scope::join, &inner);
}

TEST(OwnerDeath, AFailedCheckNamesActorAndScope) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop, "bank");
        Account account;
        account.start(scope);
      },
      "Account: an actor died before it had ended");
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop, "bank");
        scope.spawn("waits", []() -> Task<> { co_await sleep_for(1h); });
      },
      "bank: a scope died before its tasks");
}

// ---- answers
struct Fragile {
  Fragile() = default;
  Fragile(const Fragile&) { throw std::bad_alloc(); }
  Fragile(Fragile&&) noexcept {}
};
struct Get {
  using Reply = int;
};
struct GetByTask {
  using Reply = int;
};
struct GetFragile {
  using Reply = Fragile;
};
struct Keep {
  using Reply = int;
};
struct Give {};
struct Late : Actor<Late, Get, GetByTask, GetFragile, Keep, Give> {
  void handle(Get, ReplyTo<Get>) { throw std::out_of_range("no such key"); }
  Task<> handle(GetByTask, ReplyTo<GetByTask> reply) {
    const ReplyTo<GetByTask> kept = std::move(reply);
    co_await sleep_for(1ms);
    throw std::out_of_range("no such key");
  }
  void handle(GetFragile, ReplyTo<GetFragile> reply) {
    try {
      reply.send(fragile);
    } catch (const std::bad_alloc&) {
      caught = true;
    }
  }
  void handle(Keep, ReplyTo<Keep> reply) { waiting.push_back(std::move(reply)); }
  void handle(Give) {
    waiting.front().send(7);
    waiting.clear();
  }
  void on_close() { waiting.clear(); }
  std::deque<ReplyTo<Keep>> waiting;
  Fragile fragile;
  bool caught = false;
};

template <class R>
std::string asked() {
  EventLoop loop;
  Scope scope(loop, "late");
  Late& late = scope.start<Late>();
  const std::string what = loop.run(
      [](Late::AddressType to) -> Task<std::string> {
        try {
          (void)co_await to.ask(R{}, 1s);
        } catch (const std::exception& error) {
          co_return error.what();
        }
        co_return "an answer";
      },
      late.address());
  try {
    loop.run(&Scope::join, &scope);
  } catch (const std::out_of_range&) {
  }
  return what;
}

TEST(Answers, AnAskerGetsWhatADeferredHandlerThrew) {
  EXPECT_EQ(asked<Get>(), "no such key");
  EXPECT_EQ(asked<GetByTask>(), "no such key");
}

TEST(Answers, AnAskerGetsWhatCopyingTheAnswerThrew) {
  EXPECT_EQ(asked<GetFragile>(), "std::bad_alloc");
}

TEST(Answers, AReplyThatWasKeptIsGivenLater) {
  EventLoop loop;
  Scope scope(loop, "late");
  Late& late = scope.start<Late>();
  const int got = loop.run(
      [](Late::AddressType to) -> Task<int> {
        int answer = 0;
        co_await with_scope(
            [](Scope& inner, Late::AddressType at, int* out) -> Task<> {
              inner.spawn(
                  "asks",
                  [](Late::AddressType a, int* o) -> Task<> { *o = co_await a.ask(Keep{}, 1s); },
                  at, out);
              co_await sleep_for(1ms);
              co_await at.send(Give{});
            },
            to, &answer);
        co_return answer;
      },
      late.address());
  EXPECT_EQ(got, 7);
  loop.run(&Scope::join, &scope);
}

// ---- an actor that sends to itself
struct Go {
  int sends;
};
struct AskSelf {};
struct Selfish : Actor<Selfish, Go, Get, AskSelf> {
  Selfish() : Actor("selfish", 4) {}
  Task<> handle(Go m) {
    for (int i = 0; i < m.sends; ++i) {
      co_await address().send(Go{0});
      ++sent;
    }
  }
  int handle(Get) { return sent; }
  Task<> handle(AskSelf) { (void)co_await address().ask(Get{}); }
  int sent = 0;
};

TEST(SendToItself, FillsTheMailboxTwiceAndThenFails) {
  for (const int sends : {8, 9}) {
    EventLoop loop;
    Scope scope(loop, "selfish");
    Selfish& selfish = scope.start<Selfish>();
    EXPECT_EQ(selfish.address().try_send(Go{sends}), SendResult::kSent);
    loop.run([]() -> Task<> { co_await sleep_for(1ms); });  // join() would close it first
    if (sends == 8) {
      loop.run(&Scope::join, &scope);
    } else {
      EXPECT_THROW(loop.run(&Scope::join, &scope), MailboxFull);
    }
    EXPECT_EQ(selfish.sent, 8);
  }
}

TEST(SendToItself, AskingItselfIsRefusedByName) {
  EventLoop loop;
  Scope scope(loop, "selfish");
  Selfish& selfish = scope.start<Selfish>();
  EXPECT_EQ(selfish.address().try_send(AskSelf{}), SendResult::kSent);
  try {
    loop.run(&Scope::join, &scope);
    ADD_FAILURE() << "it has an answer of itself";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("selfish is asked by its own handler"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tandem
