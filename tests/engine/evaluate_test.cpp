// Engine::evaluate_sums: the same bits on any number of ranks, and none of training's are changed.
#include <bit>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

/// 11 records of several lengths, some labels left out; of record 4 all of them.
class Texts : public Dataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 11; }
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override {
    HostBatch batch{.rows = static_cast<std::int64_t>(indices.size())};
    for (const std::int64_t i : indices) {
      batch.length = std::max(batch.length, length(i));
    }
    for (const std::int64_t i : indices) {
      for (std::int64_t t = 0; t < batch.length; ++t) {
        const bool is_there = t < length(i);
        const std::int64_t token = is_there ? (i * 7 + t * 3) % toy::kVocabulary : 0;
        const bool is_label = is_there && i != 4 && (t + i) % 3 != 0;
        batch.inputs.push_back(token);
        batch.labels.push_back(is_label ? token : kIgnoredLabel);
        batch.tokens += is_there ? 1 : 0;
      }
    }
    return batch;
  }
  static std::int64_t length(std::int64_t i) { return 5 + i % 4; }
};

/// Bits of the sums after two steps.
std::tuple<std::uint64_t, std::int64_t, std::int64_t> sums_on(int world, EvaluateArgs args) {
  const auto all = on_ranks(world, [&](std::shared_ptr<Communicator> ranks) {
    Engine engine(toy::arguments({.accumulation = 4 / world}, std::move(ranks)));
    for (int step = 0; step < 2; ++step) {
      std::vector<Batch> batches;
      batches.reserve(4);
      for (int a = 0; a < 4 / world; ++a) {
        batches.push_back(toy::batch((step * 4 / world + a) * world + engine.rank()));
      }
      (void)engine.train_step(batches);
    }
    const EvalSums sums = engine.evaluate_sums(Texts(), args);
    return std::tuple(std::bit_cast<std::uint64_t>(sums.loss), sums.labels, sums.records);
  });
  for (const auto& one : all) {
    EXPECT_EQ(one, all.front()) << "every rank has the sums";
  }
  return all.front();
}

TEST(EvaluateSums, HaveTheSameBitsOnAnyNumberOfRanks) {
  for (const EvaluateArgs args :
       {EvaluateArgs{.micro_batch = 2}, EvaluateArgs{.micro_batch = 4},
        EvaluateArgs{.micro_batch = 2, .batches = 5}, EvaluateArgs{.micro_batch = 2, .batches = 1},
        EvaluateArgs{.micro_batch = 100}}) {
    const auto alone = sums_on(1, args);
    EXPECT_GT(std::get<1>(alone), 0);
    EXPECT_EQ(std::get<2>(alone), args.batches > 0 ? 2 * args.batches : 11);
    EXPECT_EQ(sums_on(2, args), alone) << args.micro_batch;
    EXPECT_EQ(sums_on(4, args), alone) << args.micro_batch;
  }
}

TEST(EvaluateSums, AreThoseOfTheLossesOneByOne) {
  Engine engine(toy::arguments({}));
  double loss = 0;
  std::int64_t labels = 0;
  for (std::int64_t i = 0; i < 11; ++i) {
    const std::array<std::int64_t, 1> index = {i};
    const HostBatch one = Texts().collate(index);
    // The first label has nothing before it.
    const auto counted = std::count_if(one.labels.begin() + 1, one.labels.end(),
                                       [](std::int64_t label) { return label != kIgnoredLabel; });
    if (counted == 0) {
      continue;
    }
    const auto tensor = [&](const std::vector<std::int64_t>& values) {
      return at::tensor(values, at::kLong).view({1, one.length});
    };
    loss += static_cast<double>(counted) *
            static_cast<double>(
                engine.evaluate({.inputs = tensor(one.inputs), .labels = tensor(one.labels)}));
    labels += counted;
  }
  const EvalSums sums = engine.evaluate_sums(Texts(), {.micro_batch = 3});
  EXPECT_EQ(sums.labels, labels);
  EXPECT_NEAR(sums.mean(), loss / static_cast<double>(labels), 1e-6 * sums.mean());
  EXPECT_DOUBLE_EQ(sums.perplexity(), std::exp(sums.mean()));
}

TEST(EvaluateSums, ChangeNoBitOfTraining) {
  const auto run = [](bool evaluates) {
    Engine engine(toy::arguments({.speculate = Speculate::kOn}));
    toy::TrainingRun run;
    for (int step = 0; step < 6; ++step) {
      if (evaluates) {
        (void)engine.evaluate_sums(Texts(), {.micro_batch = 4});
      }
      const std::vector<Batch> batches = {toy::batch(step)};
      const StepResult result = engine.train_step(batches);
      run.losses.push_back(result.loss);
      run.norms.push_back(result.verdict.norm.value);
    }
    engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
      run.weights.emplace_back(values.begin(), values.end());
    });
    return run;
  };
  EXPECT_EQ(run(true), run(false));
}

}  // namespace
}  // namespace tandem
