// Updates ahead of the verdict, seen from the engine: whatever the verdicts, losses, norms and
// weights are the bits of the run in which nothing overlaps; and what is said of each step is true.
#include "engine/step/speculation.hpp"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using toy::arguments;
using toy::Setting;
using toy::train_on_ranks;
using toy::TrainingRun;

class SpeculationOnRanks : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(SpeculationOnRanks, ChangesNoBit) {
  const auto& [type, world_size] = GetParam();
  const double some = toy::middle_norm({.accumulation = 2 * world_size, .type = type}, 8);
  std::vector<TrainingRun> runs;
  for (const double clip : {0.0, 0.01, some}) {  // acts never, always, in some steps
    Setting setting{.overlap = Overlap::kOff, .accumulation = 2, .type = type, .clip = clip};
    const TrainingRun expected = train_on_ranks(setting, world_size, 8);
    EXPECT_EQ(std::ranges::count(runs, expected), 0) << "each limit does something else";
    runs.push_back(expected);
    setting.overlap = Overlap::kFull;
    for (const int stage : {0, 1, 2, 3}) {
      for (const double misses : {0.0, 0.05, 0.5}) {
        setting.stage = stage;
        setting.forced_misses = misses;
        setting.inflight_buckets = misses == 0.05 ? 1 : 0;
        EXPECT_EQ(train_on_ranks(setting, world_size, 8), expected)
            << "clip " << clip << " stage " << stage << " misses " << misses;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, SpeculationOnRanks,
                         ::testing::Combine(::testing::Values("fp32", "bf16", "fp16"),
                                            ::testing::Values(1, 2)),
                         toy::type_and_ranks);

/// The verdicts of `steps` steps.
std::vector<Verdict> verdicts(const Setting& setting, int steps) {
  Engine engine(arguments(setting));
  std::vector<Verdict> list;
  for (int step = 0; step < steps; ++step) {
    const Batch batch = toy::batch(step);
    list.push_back(engine.train_step(std::span(&batch, 1)).verdict);
  }
  return list;
}

TEST(Speculation, SaysWhatBecameOfIt) {
  for (const Verdict& verdict : verdicts({.clip = 0}, 4)) {
    EXPECT_EQ(verdict.outcome, StepOutcome::kCommit);
    EXPECT_TRUE(verdict.speculated);
  }
  for (const Verdict& verdict : verdicts({.clip = 0.01}, 4)) {
    EXPECT_EQ(verdict.outcome, StepOutcome::kRollback);
  }
  for (const Verdict& verdict : verdicts({.clip = 0, .forced_misses = 1}, 4)) {
    EXPECT_EQ(verdict.outcome, StepOutcome::kRollback);
  }
  for (const Verdict& verdict : verdicts({.clip = 0.01, .speculate = Speculate::kOff}, 4)) {
    EXPECT_EQ(verdict.outcome, StepOutcome::kCommit);
    EXPECT_FALSE(verdict.speculated);
  }
}

TEST(Speculation, StopsWhileVerdictsKeepFailingAndTriesAgain) {
  int speculated = 0;
  for (const Verdict& verdict :
       verdicts({.clip = 0.01, .speculate = Speculate::kAuto, .device = DeviceKind::kSim}, 40)) {
    speculated += verdict.speculated ? 1 : 0;
  }
  EXPECT_EQ(speculated, 4) << "the fourth loss within sixteen verdicts ends it";
  for (const Verdict& verdict : verdicts({.clip = 0, .speculate = Speculate::kAuto}, 4)) {
    EXPECT_FALSE(verdict.speculated) << "the CPU's cores compute";
  }

  Speculation speculation(Speculate::kAuto);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(speculation.worthwhile());
    speculation.record(true);
  }
  int without = 0;
  for (; !speculation.worthwhile(); ++without) {
    speculation.record(false);
  }
  EXPECT_EQ(without, 13) << "until the first of the four is sixteen verdicts ago";
  for (int i = 0; i < 100; ++i) {
    speculation.record(i % 20 == 0);  // one in twenty
    EXPECT_TRUE(speculation.worthwhile());
  }
}

/// At its call number `call` (from 1) the embedding alone has no finite gradient: the units behind
/// it are updated ahead of a verdict that says skip.
class PoisonedEmbedding : public toy::Embedding {
 public:
  explicit PoisonedEmbedding(int call) : call_(call) {}
  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    const at::Tensor out = toy::Embedding::forward(context, input);
    return ++calls_ == call_ ? out + at::sqrt(out * 0) * 0 : out;  // its derivative: 0 * infinity
  }

 private:
  int call_;
  mutable int calls_ = 0;
};

TEST(Speculation, ASkippedStepLeavesTheOldBits) {
  for (const std::string type : {"fp32", "bf16"}) {
    const auto weights_of = [](Engine& engine) {
      std::vector<std::vector<float>> weights;
      engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
        weights.emplace_back(values.begin(), values.end());
      });
      return weights;
    };
    const auto make = [&type](Overlap overlap) {
      InitializeArgs args = arguments({.overlap = overlap, .type = type, .clip = 0});
      args.model.segments.front().run = std::make_shared<PoisonedEmbedding>(3);
      return Engine(std::move(args));
    };
    Engine engine = make(Overlap::kFull);
    Engine plain = make(Overlap::kOff);
    for (int step = 0; step < 4; ++step) {
      const Batch batch = toy::batch(step);
      const StepResult result = engine.train_step(std::span(&batch, 1));
      const StepResult expected = plain.train_step(std::span(&batch, 1));
      EXPECT_EQ(result.verdict.outcome, step == 2 ? StepOutcome::kSkip : StepOutcome::kCommit);
      EXPECT_EQ(result.verdict.norm.bad_parameter, expected.verdict.norm.bad_parameter);
      EXPECT_EQ(weights_of(engine), weights_of(plain)) << type << " step " << step;
    }
  }
}

TEST(Speculation, WeightsReadBeforeTheVerdictAreTheOldOnes) {
  for (const std::string type : {"fp32", "bf16"}) {
    Engine engine(arguments({.type = type, .clip = 0}));
    Engine plain(arguments({.overlap = Overlap::kOff, .type = type, .clip = 0}));
    const auto weights_of = [](Engine& of) {
      std::vector<float> all;
      of.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
        all.insert(all.end(), values.begin(), values.end());
      });
      return all;
    };
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> before = weights_of(engine);
      for (Engine* one : {&engine, &plain}) {
        one->backward(one->forward(toy::batch(step)));
      }
      EXPECT_EQ(weights_of(engine), before) << "between backward() and step()";
      engine.step();
      plain.step();
      EXPECT_EQ(weights_of(engine), weights_of(plain)) << type << " step " << step;
    }
  }
}

}  // namespace
}  // namespace tandem
