#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "actors/collectives/ordered_inbox.hpp"
#include "actors/memory/ring_queue.hpp"

namespace tandem {
namespace {

TEST(RingQueue, KeepsTheOrderWhileItGrowsAndWraps) {
  RingQueue<std::unique_ptr<int>> queue;
  int pushed = 0;
  int popped = 0;
  for (int round = 1; round < 40; ++round) {
    for (int i = 0; i < round; ++i) {
      queue.push(std::make_unique<int>(pushed++));
    }
    for (int i = 0; i < round - round / 3; ++i) {
      EXPECT_EQ(*queue.front(), popped);
      EXPECT_EQ(*queue.pop(), popped++);
    }
  }
  EXPECT_EQ(queue.size(), static_cast<std::size_t>(pushed - popped));
  while (!queue.empty()) {
    EXPECT_EQ(*queue.pop(), popped++);
  }
  EXPECT_EQ(popped, pushed);
}

TEST(RingQueueDeathTest, AnEmptyQueueHasNoFront) {
  RingQueue<int> queue;
  EXPECT_DEATH((void)queue.pop(), "no front");
}

TEST(OrderedInbox, GivesByNumber) {
  OrderedInbox<std::unique_ptr<int>> inbox(4);
  inbox.put(1, std::make_unique<int>(1));
  inbox.put(3, std::make_unique<int>(3));
  EXPECT_FALSE(inbox.ready());
  inbox.put(0, std::make_unique<int>(0));
  EXPECT_EQ(inbox.held(), 3U);
  EXPECT_EQ(*inbox.take(), 0);
  EXPECT_EQ(*inbox.take(), 1);
  EXPECT_FALSE(inbox.ready());
  inbox.put(5, std::make_unique<int>(5));  // number 1's place is free again
  inbox.put(2, std::make_unique<int>(2));
  for (const int expected : {2, 3}) {
    EXPECT_EQ(*inbox.take(), expected);
  }
  EXPECT_EQ(inbox.next_order(), 4U);
  std::vector<int> dropped;
  inbox.drop_all([&dropped](std::unique_ptr<int>& item) { dropped.push_back(*item); });
  EXPECT_EQ(dropped, std::vector<int>{5});
  EXPECT_EQ(inbox.held(), 0U);
}

TEST(OrderedInboxDeathTest, RefusesNumbersUsedTwiceOrTooFarAhead) {
  OrderedInbox<int> inbox(4);
  inbox.put(0, 7);
  EXPECT_DEATH(inbox.put(0, 7), "used once");
  EXPECT_DEATH(inbox.put(4, 7), "too far ahead");
  (void)inbox.take();
  EXPECT_DEATH(inbox.put(0, 7), "used once");
  EXPECT_DEATH((void)inbox.take(), "has arrived");
}

}  // namespace
}  // namespace tandem
