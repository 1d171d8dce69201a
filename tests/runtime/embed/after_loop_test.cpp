// Handles of all kinds outlive the loop that they came from: they say that it is over, and touch
// nothing of it.
#include <future>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/ask_future.hpp"
#include "runtime/scope.hpp"
#include "runtime/std_stop.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Add {
  int value;
};
struct Reset {
  static constexpr bool kControl = true;
};
struct Sum {
  using Reply = int;
};
struct Counter : Actor<Counter, Add, Reset, Sum> {
  void handle(Add m) { sum += m.value; }
  void handle(Reset) { sum = 0; }
  int handle(Sum) { return sum; }
  int sum = 0;
};

/// Handles of a loop that has ended: an address, a stop handle, and tokens.
struct Left {
  Left() {
    EventLoop loop;
    Scope scope(loop);
    address = scope.start<Counter>().address();
    handle = scope.stop_handle();
    token = scope.stop_token();
    from_std.emplace(source.get_token(), scope.stop_handle());
    loop.run(&Scope::join, &scope);
  }
  Counter::AddressType address;
  std::optional<StopHandle> handle;
  StopToken token;
  std::stop_source source;
  std::optional<StopFromStd> from_std;
};

TEST(AfterTheLoop, AnAddressSaysClosed) {
  const Left left;
  EXPECT_EQ(left.address.try_send(Add{1}), SendResult::kClosed);
  EXPECT_EQ(left.address.try_send(Reset{}), SendResult::kClosed);
  EXPECT_EQ(left.address.send_blocking(Add{1}), SendResult::kClosed);
  EXPECT_EQ(left.address.with_credits(3).try_send(Add{1}), SendResult::kClosed);
  std::future<int> answer = ask_future(left.address, Sum{}, 1s);
  EXPECT_THROW((void)answer.get(), ActorClosed);
  EventLoop fresh;
  EXPECT_THROW(fresh.run([](Counter::AddressType to) -> Task<> { (void)co_await to.ask(Sum{}); },
                         left.address),
               ActorClosed);
}

TEST(AfterTheLoop, AnActorOfOnesOwnMayBeClosedAgain) {
  Counter own;
  {
    EventLoop loop;
    Scope scope(loop);
    own.start(scope);
    own.close();
    loop.run(&Scope::join, &scope);
  }
  own.close();
  EXPECT_TRUE(own.ended());
}

TEST(AfterTheLoop, AStopStopsNothing) {
  Left left;
  left.handle->request_stop();
  left.handle->request_stop();
  left.source.request_stop();
  EXPECT_FALSE(left.token.stop_requested());
}

}  // namespace
}  // namespace tandem
