// Snippets of docs/runtime.md: what happens at a full mailbox. tools/docs_in_step.py keeps the page
// equal to this.
#include <vector>

#include <gtest/gtest.h>
#include <tandem/runtime/actor.hpp>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/scope.hpp>

namespace {

using tandem::Task;

// [coalesce]
struct Progress {
  int percent;
};
struct Abort {
  static constexpr bool kControl = true;  // needs no credit and overtakes the others
};

/// Shows how far something is. Only the newest state matters, so newer messages replace those that
/// wait.
struct Display : tandem::Actor<Display, Progress, Abort> {
  static constexpr tandem::WhenFull kWhenFull = tandem::WhenFull::kCoalesce;
  static bool coalesce(Progress& waiting, Progress&& newer) {
    waiting = newer;
    return true;
  }
  Display() : Actor("display", {.credits = 1, .measure = true}) {}

  void handle(Progress m) { shown.push_back(m.percent); }
  void handle(Abort) { shown.push_back(-1); }
  std::vector<int> shown;
};
// [/coalesce]

TEST(DocsMailboxes, NewerMessagesReplaceWaitingOnes) {
  tandem::EventLoop loop({.name = "docs"});
  tandem::Scope scope(loop, "actors");
  Display& display = scope.start<Display>();
  loop.run(
      [](Display::AddressType address) -> Task<> {
        for (int percent = 1; percent <= 100; ++percent) {
          EXPECT_EQ(address.try_send(Progress{percent}), tandem::SendResult::kSent);
        }
        EXPECT_EQ(address.try_send(Abort{}), tandem::SendResult::kSent);
        co_return;
      },
      display.address());
  loop.run(&tandem::Scope::join, &scope);
  EXPECT_EQ(display.shown, (std::vector<int>{-1, 100}));
  EXPECT_EQ(display.metrics().coalesced, 99U);
}

}  // namespace
