// An exception passes what a program holds while its loop does not run: all of it ends in order,
// and the exception arrives.
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "runtime/supervision/children.hpp"
#include "runtime/supervision/describe.hpp"
#include "runtime/supervision/status_server.hpp"
#include "runtime/supervision/watchdog.hpp"
#include "runtime/util/build.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Job {
  int value;
};
struct Quick : Actor<Quick, Job> {
  void handle(Job) {}
};
struct Busy : Actor<Busy, Job> {
  Task<> handle(Job) { co_await sleep_for(1h, co_await current_stop_token()); }
};
struct Size {
  using Reply = int;
};
struct Slow : Actor<Slow, Size> {
  Task<int> handle(Size) {
    co_await sleep_for(1h, co_await current_stop_token());
    co_return 1;
  }
};
struct Farm : Actor<Farm, Job> {
  void on_start() { child = children.start<Busy>(); }
  Task<> handle(Job m) { co_await child.send(m); }
  Children children{*this};
  Busy::AddressType child;
};

Task<> fail_soon() {
  co_await sleep_for(1ms);
  throw std::runtime_error("the cause");
}

template <class Program>
void expect_cause(Program program) {
  try {
    program();
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the cause");
  }
}

TEST(Unwinding, EndsTheChildrenOfAScope) {
  expect_cause([] {
    EventLoop loop;
    Scope scope(loop);
    Children children(scope);
    (void)children.start<Quick>().try_send(Job{1});
    (void)children.start<Busy>().try_send(Job{1});
    loop.run(&fail_soon);
  });
}

TEST(Unwinding, EndsAParentAndItsChildren) {
  expect_cause([] {
    EventLoop loop;
    Scope scope(loop);
    (void)scope.start<Farm>().address().try_send(Job{1});
    loop.run(&fail_soon);
  });
  expect_cause([] {
    EventLoop loop;
    Scope scope(loop);
    Farm farm;
    farm.start(scope);
    (void)farm.address().try_send(Job{1});
    loop.run(&fail_soon);
  });
}

// Waits for its child in its handler.
struct Asking : Actor<Asking, Job> {
  void on_start() { child = children.start<Slow>(); }
  Task<> handle(Job) { (void)co_await child.ask(Size{}); }
  Children children{*this};
  Slow::AddressType child;
};

// The handler cannot go on, and so its loop cannot: LeakSanitizer sees that their memory is lost.
TEST(Unwinding, LeavesAParentWhoseHandlerWaitsForItsChild) {
  if (kAddressSanitizer) {
    GTEST_SKIP() << "the handler's frame is leaked on purpose";
  }
  expect_cause([] {
    EventLoop loop;
    Scope scope(loop);
    Asking parent;
    parent.start(scope);
    (void)parent.address().try_send(Job{1});
    loop.run(&fail_soon);
  });
}

TEST(Unwinding, EndsWhatWatchesAndServes) {
  expect_cause([] {
    EventLoop loop;
    const Watchdog watchdog(loop);
    const StatusServer status(loop, "127.0.0.1:0", {});
    const DumpOnSignal dump(loop);
    Scope scope(loop);
    scope.spawn("waits", []() -> Task<> { co_await sleep_for(1h, co_await current_stop_token()); });
    loop.run(&fail_soon);
  });
}

}  // namespace
}  // namespace tandem
