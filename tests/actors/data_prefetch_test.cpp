#include "actors/data_prefetch.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/actor_world.hpp"

namespace tandem {
namespace {

using test::settle;
using test::World;

using Text = std::unique_ptr<std::string>;  // movable only, as a batch may be

struct PrefetchWorld : World {
  std::atomic<int> started{0};
  std::unique_ptr<DataPrefetch<Text>> prefetch;

  PrefetchWorld(std::function<std::optional<Text>(std::uint64_t)> make, std::size_t depth,
                std::uint64_t first = 0) {
    prefetch = std::make_unique<DataPrefetch<Text>>(
        DataPrefetch<Text>::Options{.pool = &pool,
                                    .make =
                                        [this, make](std::uint64_t index) {
                                          ++started;
                                          return make(index);
                                        },
                                    .first = first,
                                    .depth = depth});
    prefetch->start(scope);
  }
  ~PrefetchWorld() { end(); }

  /// The next batch's text, "end", or the error's text.
  std::string next() {
    return loop.run(
        [](PrefetchWorld* w) -> Task<std::string> {
          try {
            const auto batch = co_await w->prefetch->address().ask(NextBatch<Text>{});
            co_return batch.has_value() ? **batch : "end";
          } catch (const std::exception& error) {
            co_return error.what();
          }
        },
        this);
  }
};

std::optional<Text> numbered(std::uint64_t index) {
  return std::make_unique<std::string>("batch " + std::to_string(index));
}

TEST(DataPrefetch, KeepsTheOrderWhateverTheSpeedOfTheWorkers) {
  PrefetchWorld world(
      [](std::uint64_t index) {
        std::this_thread::sleep_for(std::chrono::microseconds(index % 3 == 0 ? 900 : 20));
        return numbered(index);
      },
      4);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(world.next(), "batch " + std::to_string(i));
  }
  EXPECT_EQ(world.prefetch->counters().batches, 40U);
}

TEST(DataPrefetch, MakesDepthBatchesAheadAndNoMore) {
  PrefetchWorld world(&numbered, 3);
  for (int i = 0; i < 100 && world.started < 3; ++i) {
    world.loop.run([]() -> Task<> { co_await sleep_for(std::chrono::milliseconds(1)); });
  }
  world.loop.run(&settle);
  EXPECT_EQ(world.started, 3);
  EXPECT_EQ(world.next(), "batch 0");
  for (int i = 0; i < 100 && world.started < 4; ++i) {
    world.loop.run([]() -> Task<> { co_await sleep_for(std::chrono::milliseconds(1)); });
  }
  EXPECT_EQ(world.started, 4);
  EXPECT_EQ(world.prefetch->counters().waits, 0U);
}

TEST(DataPrefetch, EndsWhereTheDataEnds) {
  PrefetchWorld world(
      [](std::uint64_t index) { return index < 5 ? numbered(index) : std::nullopt; }, 4, 3);
  EXPECT_EQ(world.next(), "batch 3");  // a resumed run goes on where it was
  EXPECT_EQ(world.next(), "batch 4");
  EXPECT_EQ(world.next(), "end");
  EXPECT_EQ(world.next(), "end");
  EXPECT_LE(world.started, 6);
}

TEST(DataPrefetch, AFailureComesBackToItsAsker) {
  PrefetchWorld world(
      [](std::uint64_t index) -> std::optional<Text> {
        if (index == 2) {
          throw std::runtime_error("line 17 has no field \"text\"");
        }
        return numbered(index);
      },
      3);
  EXPECT_EQ(world.next(), "batch 0");
  EXPECT_EQ(world.next(), "batch 1");
  EXPECT_EQ(world.next(), "line 17 has no field \"text\"");
  EXPECT_EQ(world.next(), "line 17 has no field \"text\"");
  EXPECT_TRUE(world.scope.failures().empty());  // it is the asker's failure
}

TEST(DataPrefetch, CountsTheWaits) {
  PrefetchWorld world(
      [](std::uint64_t index) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return numbered(index);
      },
      1);
  for (int i = 0; i < 4; ++i) {
    world.next();
  }
  EXPECT_GE(world.prefetch->counters().waits, 3U);
  EXPECT_GE(world.prefetch->counters().waiting_s, 0.005);
}

}  // namespace
}  // namespace tandem
