// Children of a scope: nothing is kept of those that have ended, and the others end with it.
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "runtime/sleep.hpp"
#include "runtime/supervision/children.hpp"

namespace tandem {
namespace {

struct Finish {};

struct Brief : Actor<Brief, Finish> {
  explicit Brief(std::shared_ptr<int> given) : held(std::move(given)) {}
  void handle(Finish) { close(); }
  std::shared_ptr<int> held;
};

TEST(ChildrenMemory, NothingIsKeptOfAChildThatHasEnded) {
  EventLoop loop;
  Scope scope(loop, "parent");
  Children children(scope);
  const auto given = std::make_shared<int>(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(children.start<Brief>(given).try_send(Finish{}), SendResult::kSent);
  }
  EXPECT_EQ(given.use_count(), 201);  // each child and its arguments
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(children.running(), 0U);
  EXPECT_EQ(given.use_count(), 1);
}

TEST(ChildrenOfAScope, StopWhenTheyAreAskedOrWithIt) {
  EventLoop loop;
  Scope scope(loop, "root");
  Children children(scope);
  const auto given = std::make_shared<int>(1);
  const auto settle = [&] { loop.run([]() -> Task<> { co_await sleep_for(Duration(1)); }); };
  const auto first = children.start<Brief>(given);
  children.request_stop();
  settle();
  EXPECT_TRUE(first.closed());
  EXPECT_EQ(children.running(), 0U);
  const auto second = children.start<Brief>(given);
  settle();
  EXPECT_FALSE(second.closed()) << "others may start later";
  scope.request_stop();
  loop.run(&Scope::join, &scope);
  EXPECT_TRUE(second.closed());
  EXPECT_EQ(children.restarts(), 0U);
  EXPECT_EQ(given.use_count(), 1);
}

}  // namespace
}  // namespace tandem
