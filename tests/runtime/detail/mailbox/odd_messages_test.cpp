// Messages of plug-ins, whose types are known by name; a reply whose move throws; memory of bursts;
// and senders that leave a full mailbox by the thousand.
#include <new>
#include <vector>

#include <gtest/gtest.h>
#include <malloc.h>

#include "runtime/actor.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/build.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Add {
  int value;
};
struct Other {};
struct Sink : Actor<Sink, Other, Add> {
  Sink() : Actor("sink", 1'000'000) {}
  void handle(Add m) { sum += m.value; }
  void handle(Other) {}
  int sum = 0;
};

// As it comes from a library that hides its symbols: the same name, another object.
SendResult send_as_plugin(const Sink::AddressType& to, const detail::MessageType& theirs,
                          int value) {
  Add message{value};
  if (to.mailbox()->admit(nullptr, message) != detail::Admit::kReserved) {
    return SendResult::kFull;
  }
  auto* envelope = detail::make_in_pool<detail::MessageEnvelope<Add>>(message);
  envelope->type = &theirs;
  to.mailbox()->deliver(*envelope);
  return SendResult::kSent;
}

TEST(PluginMessage, IsKnownByItsName) {
  EventLoop loop;
  Scope scope(loop, "actors");
  Sink& sink = scope.start<Sink>();
  const std::string name = detail::kMessageType<Add>.name;
  const detail::MessageType theirs{name.c_str(), false};
  EXPECT_EQ(send_as_plugin(sink.address(), theirs, 5), SendResult::kSent);
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(sink.sum, 5);
}

TEST(PluginMessageDeath, OfNoKnownNameIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const detail::MessageType unheard{"Unheard", false};
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop, "actors");
        Sink& sink = scope.start<Sink>();
        (void)send_as_plugin(sink.address(), unheard, 5);
        loop.run(&Scope::join, &scope);
      },
      "sink: a message came that this actor does not handle");
}

// The first move takes it into the request's block, the next one to its asker.
struct Brittle {
  Brittle() = default;
  Brittle(Brittle&& /*other*/) {
    if (moves_left-- == 0) {
      throw std::bad_alloc();
    }
  }
  static inline int moves_left = 0;
};
struct GetBrittle {
  using Reply = Brittle;
};
struct Maker : Actor<Maker, GetBrittle> {
  Brittle handle(GetBrittle) { return {}; }
};

TEST(OddReply, OneWhoseMoveThrowsIsAnErrorOfItsAsker) {
  EventLoop loop;
  Scope scope(loop, "actors");
  const auto ask = [](Maker::AddressType maker) -> Task<> {
    (void)co_await maker.ask(GetBrittle());
  };
  Maker& maker = scope.start<Maker>();
  Brittle::moves_left = 1;
  EXPECT_THROW(loop.run(ask, maker.address()), std::bad_alloc);
  Brittle::moves_left = 100;
  loop.run(ask, maker.address());  // the actor goes on
  loop.run(&Scope::join, &scope);
}

TEST(MessagePool, GivesBackWhatABurstNeeded) {
  if (kAddressSanitizer || kThreadSanitizer) {
    GTEST_SKIP() << "a sanitizer has a malloc of its own";
  }
  EventLoop loop;
  Scope scope(loop, "actors");
  Sink& sink = scope.start<Sink>();
  const auto in_use = [] { return ::mallinfo2().uordblks; };
  const std::size_t before = in_use();
  for (int i = 0; i < 300'000; ++i) {
    ASSERT_EQ(sink.address().try_send(Add{1}), SendResult::kSent);
  }
  const std::size_t full = in_use() - before;
  loop.run(
      [](Sink* s) -> Task<> {
        while (s->sum < 300'000) {
          co_await yield();
        }
      },
      &sink);
  EXPECT_LT(in_use() - before, full / 4);
  loop.run(&Scope::join, &scope);
}

struct Slow : Actor<Slow, Add> {
  Slow() : Actor("slow", 1) {}
  Task<> handle(Add) { co_await sleep_for(1h, co_await current_stop_token()); }
};

// In time that grows with their number: a hundred thousand took minutes when each walked the queue.
TEST(WaitQueue, AHundredThousandSendersLeaveAtOnce) {
  EventLoop loop;
  Scope actors(loop, "actors");
  Slow& slow = actors.start<Slow>();
  Scope senders(loop, "senders");
  const int count = kDebugChecks ? 10'000 : 100'000;
  for (int i = 0; i < count; ++i) {
    senders.spawn(
        "send",
        [](Slow::AddressType to) -> Task<> {
          co_await to.send(Add{1}, co_await current_stop_token());
        },
        slow.address());
  }
  loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  EXPECT_GE(senders.running(), static_cast<std::size_t>(count) - 2);
  senders.request_stop();
  loop.run(&Scope::join, &senders);
  actors.request_stop();
  loop.run(&Scope::join, &actors);
}

}  // namespace
}  // namespace tandem
