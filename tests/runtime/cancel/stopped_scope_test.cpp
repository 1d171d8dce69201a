// A stop of a scope, for its actors and for those who ask them: sends between actors end with
// Stopped, which is no failure, and an asker elsewhere gets ActorClosed, whatever the handler was
// doing.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Ball {
  int throws = 0;
};

/// Passes each ball on twice, so that the mailboxes of a ring are soon full.
struct Player : Actor<Player, Ball> {
  explicit Player(std::string name) : Actor(Name(name), 2) {}
  Task<> handle(Ball ball) {
    for (int i = 0; i < 2; ++i) {
      co_await next.send(Ball{ball.throws + 1});
      ++passed;
      co_await sleep_for(1ms);
    }
  }
  Address<Ball> next;
  int passed = 0;
};

TEST(StoppedScope, ActorsThatSendToEachOtherEndWithoutAFailure) {
  EventLoop loop;
  Scope scope(loop);
  Player& one = scope.start<Player>("one");
  Player& two = scope.start<Player>("two");
  Player& three = scope.start<Player>("three");
  one.next = two.address();
  two.next = three.address();
  three.next = one.address();
  ASSERT_EQ(one.address().try_send(Ball{}), SendResult::kSent);
  loop.run(
      [](Scope* s) -> Task<> {
        co_await sleep_for(50ms);
        s->request_stop();
        co_await s->join();  // rethrows a failure
      },
      &scope);
  EXPECT_TRUE(scope.failures().empty());
  EXPECT_GT(one.passed + two.passed + three.passed, 3);
}

TEST(StoppedScope, ASendThatMeetsAClosedActorIsAFailureElsewhere) {
  EventLoop loop;
  Scope scope(loop);
  Player& gone = scope.start<Player>("gone");
  const Address<Ball> address = gone.address();
  gone.close();
  bool closed = false;
  bool stopped = false;
  loop.run(
      [](Address<Ball> to, bool* is_closed, bool* is_stopped) -> Task<> {
        try {
          co_await to.send(Ball{});
        } catch (const ActorClosed&) {
          *is_closed = true;
        }
        co_await with_scope(
            [](Scope& own, Address<Ball> address_of_gone, bool* out) -> Task<> {
              own.request_stop();
              try {
                co_await address_of_gone.send(Ball{});
              } catch (const Stopped&) {
                *out = true;
              }
            },
            to, is_stopped);
      },
      address, &closed, &stopped);
  EXPECT_TRUE(closed);
  EXPECT_TRUE(stopped);
  loop.run(&Scope::join, &scope);
}

struct CountFile {
  using Reply = int;
};
struct CountAtOnce {
  using Reply = int;
};
struct CountBeside {
  using Reply = int;
};

Task<> count_for(ReplyTo<CountBeside> reply) {
  co_await sleep_for(1h, co_await current_stop_token());
  reply.send(1);
}

/// Each request takes an hour, or until the scope is stopped.
struct Reader : Actor<Reader, CountFile, CountAtOnce, CountBeside> {
  Task<> handle(CountFile, ReplyTo<CountFile> reply) {
    co_await sleep_for(1h, co_await current_stop_token());
    reply.send(1);
  }
  Task<int> handle(CountAtOnce) {
    co_await sleep_for(1h, co_await current_stop_token());
    co_return 1;
  }
  void handle(CountBeside, ReplyTo<CountBeside> reply) {
    scope().spawn("beside", &count_for, std::move(reply));
  }
};

template <class R>
std::string said_to_asker() {
  EventLoop loop;
  Scope scope(loop);
  Scope askers(loop);
  Reader& reader = scope.start<Reader>();
  std::string said;
  askers.spawn(
      "asker",
      [](Reader::AddressType address, std::string* out) -> Task<> {
        try {
          (void)co_await address.ask(R{});
        } catch (const ActorClosed& error) {
          *out = std::string("closed: ") + error.what();
        } catch (const Stopped&) {
          *out = "stopped";
        } catch (const std::exception& error) {
          *out = error.what();
        }
      },
      reader.address(), &said);
  loop.run(
      [](Scope* s, Scope* a) -> Task<> {
        co_await sleep_for(10ms);
        s->request_stop();
        co_await s->join();
        co_await a->join();
      },
      &scope, &askers);
  return said;
}

TEST(StoppedScope, AnAskerOfAStoppedHandlerGetsActorClosed) {
  EXPECT_EQ(said_to_asker<CountFile>().substr(0, 8), "closed: ");
  EXPECT_EQ(said_to_asker<CountAtOnce>().substr(0, 8), "closed: ");
  EXPECT_EQ(said_to_asker<CountBeside>().substr(0, 8), "closed: ");
}

}  // namespace
}  // namespace tandem
