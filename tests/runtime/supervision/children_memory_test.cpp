// Nothing is kept of children that have ended.
#include <memory>
#include <utility>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tandem
