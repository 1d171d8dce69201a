// Replies that come too late: after the deadline, after the end of the asker's loop, after a
// restart of the actor. Each is dropped, and none reaches the ask that has its place in the table
// now.
#include <atomic>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/supervision/children.hpp"
#include "runtime/when_all.hpp"
#include "tests/runtime/cancel/cancel_enumeration.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr bool kSlow = kAddressSanitizer || kThreadSanitizer;
constexpr int kAskers = 8;
constexpr int kAsks = kSlow ? 120 : 600;  // per asker

struct Answer {
  int value;
  test::Tracked tracked = {};
};
struct Echo {  // answered when `behind` more messages have come
  using Reply = Answer;
  int value;
  int behind = 0;
};
struct Hold {  // answered at the asker's next Release
  using Reply = Answer;
  int asker;
  int value;
};
struct Keep {  // the answer stays with the actor's state
  using Reply = Answer;
};
struct Release {
  int asker;
};
struct Fail {};

// The duties to answer; outlives the actor's state where a test restarts it.
struct Duties {
  struct Held {
    Hold request;
    ReplyTo<Hold> reply;
  };
  struct Echoed {
    int due;
    int value;
    ReplyTo<Echo> reply;
  };
  std::vector<Held> held;
  std::vector<Echoed> echoed;
  int messages = 0;
  int released = 0;
};

struct Clerk : Actor<Clerk, Echo, Hold, Keep, Release, Fail> {
  explicit Clerk(Duties* to_do, std::uint32_t credits = 4)
      : Actor("clerk", credits), duties(to_do) {}
  void handle(Echo r, ReplyTo<Echo> reply) {
    duties->echoed.push_back({duties->messages + r.behind, r.value, std::move(reply)});
    echo();
  }
  void handle(Hold r, ReplyTo<Hold> reply) { duties->held.push_back({r, std::move(reply)}); }
  void handle(Keep, ReplyTo<Keep> reply) { kept.push_back(std::move(reply)); }
  void handle(Release m) {
    std::erase_if(duties->held, [&](Duties::Held& held) {
      if (held.request.asker != m.asker) {
        return false;
      }
      held.reply.send(Answer{held.request.value});
      ++duties->released;
      return true;
    });
  }
  void handle(Fail) { throw std::runtime_error("as asked"); }
  void echo() {
    std::erase_if(duties->echoed, [&](Duties::Echoed& echoed) {
      if (echoed.due > duties->messages) {
        return false;
      }
      echoed.reply.send(Answer{echoed.value});
      return true;
    });
    ++duties->messages;
  }
  Duties* duties;
  std::vector<ReplyTo<Keep>> kept;
};
using ClerkAddress = Clerk::AddressType;

// Its reply is sent, by release(), after it has given up: never before.
Task<> ask_in_vain(ClerkAddress to, int asker) {
  EXPECT_THROW((void)co_await to.ask(Hold{asker, -1}, 20us), DeadlineExceeded);
}

// ---- after the deadline

// A loop that never sleeps, with a clerk for the other side and askers of the other side's clerk.
struct Side {
  Side() { clerk.start(clerks); }
  EventLoop loop;
  Scope clerks{loop, "clerks"};
  Duties duties;
  Clerk clerk{&duties};
  Scope askers{loop, "askers"};
  int answered = 0;
  int late = 0;
};

Task<> ask_again_and_again(Side* side, ClerkAddress to, int asker) {
  for (int i = 0; i < kAsks; ++i) {
    const int value = asker * kAsks + i;
    if (i % 4 == 0) {
      EXPECT_EQ((co_await to.ask(Echo{value})).value, value);
      ++side->answered;
    } else if (i % 4 == 1) {
      co_await ask_in_vain(to, asker);
      ++side->late;
      co_await to.send(Release{asker});
    } else {
      try {  // either is right
        EXPECT_EQ((co_await to.ask(Echo{value, i % 7}, 20us * (1 + i % 9))).value, value);
        ++side->answered;
      } catch (const DeadlineExceeded&) {
        ++side->late;
      }
    }
  }
}

Task<> run_side(Side* side, ClerkAddress to, std::atomic<int>* sides_left) {
  for (int asker = 0; asker < kAskers; ++asker) {
    side->askers.spawn("asker", &ask_again_and_again, side, to, asker);
  }
  while (side->askers.running() > 0) {
    co_await yield();
  }
  co_await side->askers.join();
  --*sides_left;
  while (*sides_left > 0) {  // the other side's requests
    co_await yield();
  }
  side->clerk.close();
  co_await side->clerks.join();
}

TEST(LateReply, AfterTheDeadlineBetweenTwoBusyLoops) {
  {
    Side here;
    Side there;
    std::atomic<int> sides_left{2};
    std::thread thread(
        [&] { there.loop.run(&run_side, &there, here.clerk.address(), &sides_left); });
    here.loop.run(&run_side, &here, there.clerk.address(), &sides_left);
    thread.join();
    for (Side* side : {&here, &there}) {
      EXPECT_EQ(side->answered + side->late, kAskers * kAsks);
      EXPECT_GE(side->answered, kAskers * kAsks / 4);
      EXPECT_GE(side->late, kAskers * kAsks / 4);
      EXPECT_EQ(side->loop.asks().pending(), 0U);
    }
  }
  EXPECT_EQ(test::Tracked::alive.load(), 0);
}

// ---- after the end of the asker's loop

// A clerk on a thread of its own, where the loop never sleeps.
class BusyOffice {
 public:
  template <class Start>
  explicit BusyOffice(Start start) {
    start(scope_);
    scope_.spawn(
        "busy",
        [](StopToken stop) -> Task<> {
          while (!stop.stop_requested()) {
            co_await yield();
          }
        },
        scope_.stop_token());
    thread_ = std::thread([this] { loop_.run(&Scope::join, &scope_); });
  }
  ~BusyOffice() {
    stop_.request_stop();
    thread_.join();
  }

 private:
  EventLoop loop_{{.name = "office"}};
  Scope scope_{loop_, "office"};
  StopHandle stop_ = scope_.stop_handle();
  std::thread thread_;
};

TEST(LateReply, AfterTheEndOfTheAskersLoop) {
  constexpr int kLoops = kSlow ? 60 : 300;
  Duties duties;
  // Credits for all: a Hold that waited for one could be behind the last Release.
  Clerk clerk(&duties, 3U * kAskers);
  {
    const BusyOffice office([&](Scope& scope) { clerk.start(scope); });
    for (int i = 0; i < kLoops; ++i) {
      const bool released_by_asker = i % 2 == 1;  // then the replies and the end of the loop race
      {
        EventLoop loop;
        Scope askers(loop);
        for (int asker = 0; asker < kAskers; ++asker) {
          askers.spawn("asker", &ask_in_vain, clerk.address(), 0);
        }
        loop.run(&Scope::join, &askers);
        if (released_by_asker) {
          loop.run([](ClerkAddress to) -> Task<> { co_await to.send(Release{0}); },
                   clerk.address());
        }
      }
      while (!released_by_asker && clerk.address().try_send(Release{0}) != SendResult::kSent) {
        std::this_thread::yield();
      }
    }
    EventLoop loop;
    loop.run([](ClerkAddress to) -> Task<> { (void)co_await to.ask(Echo{0}); }, clerk.address());
  }
  EXPECT_EQ(duties.released, kLoops * kAskers);
  EXPECT_EQ(test::Tracked::alive.load(), 0);
}

// ---- after a restart
Task<int> hold(ClerkAddress to, int asker, int value) {
  co_return (co_await to.ask(Hold{asker, value})).value;
}
Task<> release(ClerkAddress to, int asker) { co_await to.send(Release{asker}); }
Task<> fail(ClerkAddress to) { co_await to.send(Fail{}); }
Task<int> count_dropped(ClerkAddress to) {
  try {
    (void)co_await to.ask(Keep{});
  } catch (const Error&) {
    co_return 1;
  }
  co_return 0;
}

Task<> ask_over_restarts(ClerkAddress to, int asker, int times) {
  for (int i = 0; i < times; ++i) {
    co_await ask_in_vain(to, asker);
    // The replies that the old state kept fail with it; if it has failed already, this call goes to
    // the fresh state.
    const auto [dropped, nothing] = co_await when_all(count_dropped(to), fail(to));
    EXPECT_EQ(dropped, 1);
    // The fresh state answers both asks: the abandoned one, and the one that now has its place.
    const auto [value, sent] = co_await when_all(hold(to, asker, i), release(to, asker));
    EXPECT_EQ(value, i);
  }
}

TEST(LateReply, AfterARestartOfTheActor) {
  constexpr int kTimes = kSlow ? 20 : 100;
  Duties duties;
  std::unique_ptr<Children> children;
  ClerkAddress clerk;
  {
    const BusyOffice office([&](Scope& scope) {
      children = std::make_unique<Children>(scope, Children::Options{.limit = {.most = 1 << 20}});
      // Credits for three messages of each asker: none waits in the wait queue, where another
      // task's message may overtake it.
      clerk = children->start<Clerk>(&duties, 3U * kAskers);
    });
    EventLoop loop;
    Scope askers(loop);
    for (int asker = 0; asker < kAskers; ++asker) {
      askers.spawn("asker", &ask_over_restarts, clerk, asker, kTimes);
    }
    loop.run(&Scope::join, &askers);
    EXPECT_EQ(loop.asks().pending(), 0U);
  }
  EXPECT_EQ(children->restarts(), static_cast<std::uint64_t>(kAskers * kTimes));
  EXPECT_EQ(duties.released, 2 * kAskers * kTimes);
  EXPECT_EQ(test::Tracked::alive.load(), 0);
}

// ---- twice
void answer_again(void (*second)(ReplyTo<Hold>&)) {
  Duties duties;
  EventLoop loop;
  Scope scope(loop);
  Clerk clerk(&duties);
  clerk.start(scope);
  scope.spawn("asker", &ask_in_vain, clerk.address(), 0);
  loop.run(
      [](Duties* waiting) -> Task<> {
        while (waiting->held.empty()) {
          co_await yield();
        }
      },
      &duties);
  duties.held[0].reply.send(Answer{1});
  EXPECT_FALSE(duties.held[0].reply);
  second(duties.held[0].reply);
}

TEST(LateReplyDeathTest, ASecondReplyIsOurMistake) {
  EXPECT_DEATH(answer_again([](ReplyTo<Hold>& reply) { reply.send(Answer{2}); }),
               "a request is answered once");
  EXPECT_DEATH(answer_again([](ReplyTo<Hold>& reply) {
                 reply.fail(std::make_exception_ptr(std::runtime_error("second")));
               }),
               "a request is answered once");
}

}  // namespace
}  // namespace tandem
