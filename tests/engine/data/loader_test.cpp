#include "engine/data/loader.hpp"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "engine/data/sampler.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// The record indices of an epoch for one rank, in order.
std::vector<std::int64_t> epoch_indices(const SamplerOptions& options, std::int64_t epoch) {
  const std::vector<std::int64_t> order = epoch_order(options, epoch);
  const std::int64_t dealt = options.block * options.world_size;
  std::vector<std::int64_t> mine;
  for (std::int64_t round = 0; round < (options.records + dealt - 1) / dealt; ++round) {
    const auto block = block_of_round(options, order, round);
    mine.insert(mine.end(), block.begin(), block.end());
  }
  return mine;
}

// torch.randperm(10, generator=torch.Generator().manual_seed(7)), and the first of 1000 with
// seed 42.
TEST(Sampler, PermutesAsTorchDoes) {
  EXPECT_EQ(torch_permutation(10, 7), (std::vector<std::int64_t>{5, 0, 3, 4, 1, 7, 9, 6, 8, 2}));
  const auto order = torch_permutation(1000, 42);
  EXPECT_EQ(std::vector<std::int64_t>(order.begin(), order.begin() + 8),
            (std::vector<std::int64_t>{542, 618, 816, 68, 94, 215, 60, 585}));
}

TEST(Sampler, RanksShareAnEpochAndWrapAround) {
  std::multiset<std::int64_t> seen;
  for (int rank = 0; rank < 4; ++rank) {
    const auto mine = epoch_indices({.records = 10, .world_size = 4, .rank = rank, .seed = 3}, 0);
    EXPECT_EQ(mine.size(), 3U);
    seen.insert(mine.begin(), mine.end());
  }
  EXPECT_EQ(seen.size(), 12U);
  EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 10U);
}

TEST(Sampler, DealsWholeMicroBatchesToTheRanks) {
  // One rank's blocks of three, and the same blocks as two and three ranks get them.
  const SamplerOptions alone = {.records = 20, .block = 3, .seed = 5};
  const auto order = epoch_indices(alone, 1);
  ASSERT_EQ(order.size(), 20U);
  const auto block = [&](std::size_t number) {
    const std::size_t begin = number % 7 * 3;
    return std::vector<std::int64_t>(
        order.begin() + static_cast<std::ptrdiff_t>(begin),
        order.begin() + std::min<std::ptrdiff_t>(20, static_cast<std::ptrdiff_t>(begin) + 3));
  };
  for (const int world_size : {2, 3}) {
    for (int rank = 0; rank < world_size; ++rank) {
      SamplerOptions options = alone;
      options.world_size = world_size;
      options.rank = rank;
      std::vector<std::int64_t> expected;
      for (int round = 0; round < (7 + world_size - 1) / world_size; ++round) {
        for (const std::int64_t index :
             block(static_cast<std::size_t>(round * world_size + rank))) {
          expected.push_back(index);
        }
      }
      EXPECT_EQ(epoch_indices(options, 1), expected) << rank << " of " << world_size;
    }
  }
}

TEST(Sampler, EpochsDiffer) {
  const SamplerOptions options = {.records = 50, .seed = 3};
  EXPECT_NE(epoch_indices(options, 0), epoch_indices(options, 1));
  EXPECT_EQ(epoch_indices(options, 1), epoch_indices(options, 1));
}

class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t count) : count_(count) {}
  [[nodiscard]] std::int64_t size() const override { return count_; }
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override {
    HostBatch batch{.rows = static_cast<std::int64_t>(indices.size()), .length = 1};
    batch.inputs.assign(indices.begin(), indices.end());
    return batch;
  }

 private:
  std::int64_t count_;
};

TEST(Loader, EveryRecordOnceInEachEpochAndAShortLastBatch) {
  const Loader loader(std::make_shared<Numbers>(10), {.micro_batch = 4, .epochs = 2});
  EXPECT_EQ(loader.batches_per_epoch(), 3);
  EXPECT_EQ(loader.batches(), 6);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<std::int64_t> seen;
    for (std::int64_t b = 0; b < 3; ++b) {
      const auto batch = loader.make(epoch * 3 + b);
      ASSERT_TRUE(batch.has_value());
      EXPECT_EQ(batch->epoch, epoch);
      EXPECT_EQ(batch->rows, b == 2 ? 2 : 4);
      seen.insert(batch->inputs.begin(), batch->inputs.end());
    }
    EXPECT_EQ(seen.size(), 10U);
  }
  EXPECT_FALSE(loader.make(6).has_value());
}

TEST(Loader, DropLastLeavesTheRestOut) {
  const Loader loader(std::make_shared<Numbers>(10),
                      {.micro_batch = 4, .epochs = 1, .drop_last = true});
  EXPECT_EQ(loader.batches(), 2);
}

TEST(Loader, AStepsMicroBatchesAreTheSameForEveryNumberOfRanks) {
  const auto make = [](int world_size, int rank, std::int64_t number) {
    return Loader(std::make_shared<Numbers>(24),
                  {.sampler = {.world_size = world_size, .rank = rank, .seed = 9},
                   .micro_batch = 2,
                   .epochs = 2})
        .make(number)
        ->inputs;
  };
  for (const int world_size : {2, 4}) {
    for (std::int64_t k = 0; k < 24; ++k) {
      EXPECT_EQ(make(1, 0, k), make(world_size, static_cast<int>(k % world_size), k / world_size));
    }
  }
}

/// Where neither records nor micro-batches divide, through several epochs.
TEST(Loader, EpochsAreTheSameForEveryNumberOfRanksThatShareAStep) {
  constexpr std::int64_t kOfStep = 4;
  for (const bool drop_last : {false, true}) {
    const auto make = [&](int world_size, int rank, std::int64_t number) {
      const auto batch = Loader(std::make_shared<Numbers>(29),
                                {.sampler = {.world_size = world_size, .rank = rank, .seed = 9},
                                 .micro_batch = 3,
                                 .accumulation = kOfStep / world_size,
                                 .epochs = 3,
                                 .drop_last = drop_last})
                             .make(number);
      return batch ? batch->inputs : std::vector<std::int64_t>();
    };
    EXPECT_FALSE(make(1, 0, drop_last ? 23 : 35).empty());
    EXPECT_TRUE(make(1, 0, drop_last ? 24 : 36).empty());
    for (const int world_size : {2, 4}) {
      for (std::int64_t k = 0; k < 37; ++k) {
        EXPECT_EQ(make(1, 0, k),
                  make(world_size, static_cast<int>(k % world_size), k / world_size));
      }
    }
  }
}

TEST(Loader, DropLastDealsTheSameNumberToEveryRank) {
  for (const int world_size : {1, 2, 3}) {
    const LoaderOptions options = {
        .sampler = {.world_size = world_size}, .micro_batch = 4, .drop_last = true};
    EXPECT_EQ(batches_per_epoch(23, options), 5 / world_size);
  }
}

TEST(Loader, NoFullBatchIsTheUsersMistake) {
  EXPECT_THROW(
      Loader(std::make_shared<Numbers>(3), {.micro_batch = 4, .epochs = 1, .drop_last = true}),
      Error);
}

TEST(Loader, BatchesDoNotDependOnTheOrderInWhichTheyAreMade) {
  const Loader a(std::make_shared<Numbers>(10), {.micro_batch = 3, .epochs = 0});
  const Loader b(std::make_shared<Numbers>(10), {.micro_batch = 3, .epochs = 0});
  std::vector<std::vector<std::int64_t>> forward;
  for (std::int64_t i = 0; i < 9; ++i) {
    forward.push_back(a.make(i)->inputs);
  }
  for (std::int64_t i = 8; i >= 0; --i) {
    EXPECT_EQ(b.make(i)->inputs, forward[static_cast<std::size_t>(i)]);
  }
}

/// Record i has i labels behind its first token.
class Counted : public Dataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 10; }
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override {
    HostBatch batch{.rows = static_cast<std::int64_t>(indices.size()), .length = 11};
    for (const std::int64_t i : indices) {
      for (std::int64_t t = 0; t < batch.length; ++t) {
        batch.inputs.push_back(t);
        batch.labels.push_back(t <= i ? t : kIgnoredLabel);
      }
    }
    return batch;
  }
};

TEST(Loader, TellsEachMicroBatchItsShareOfTheStepsLabels) {
  for (const int world : {1, 2, 4}) {
    for (std::int64_t step = 0; step < 5; ++step) {  // past the first epoch
      double sum = 0;
      std::vector<double> shares(4);
      for (int rank = 0; rank < world; ++rank) {
        const Loader loader(std::make_shared<Counted>(),
                            {.sampler = {.world_size = world, .rank = rank, .seed = 3},
                             .micro_batch = 1,
                             .accumulation = 4 / world,
                             .epochs = 0,
                             .counts_labels = true});
        for (int a = 0; a < 4 / world; ++a) {
          const auto batch = loader.make(step * 4 / world + a);
          shares[static_cast<std::size_t>(a * world + rank)] = *batch->loss_share;
          sum += *batch->loss_share;
        }
      }
      EXPECT_NEAR(sum, 1, 1e-12);
      static std::vector<std::vector<double>> alone(5);
      if (world == 1) {
        alone[static_cast<std::size_t>(step)] = shares;
      }
      EXPECT_EQ(shares, alone[static_cast<std::size_t>(step)]) << world << " ranks";
    }
  }
}

}  // namespace
}  // namespace tandem
