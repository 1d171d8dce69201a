// The engine's step against the same model as one ordinary autograd graph, and against itself under
// every schedule.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using toy::arguments;
using toy::Setting;
using toy::train;
using toy::TrainingRun;

/// The reference: all parameters as leaves of one graph, torch's own backward, AdamW by its formula
/// in double.
struct Reference {
  explicit Reference() : model(toy::model()) {
    for (const UnitSpec& unit : model.units) {
      auto& weights = leaves.emplace_back();
      for (const ParameterSpec& parameter : unit.parameters) {
        at::Tensor value = at::empty(parameter.shape);
        toy::fill(parameter, 0, parameter.numel(), value.data_ptr<float>());
        weights.push_back({.value = value.requires_grad_(true)});
      }
    }
  }

  at::Tensor loss(const Batch& batch) {
    at::Tensor x;
    for (const SegmentSpec& segment : model.segments) {
      std::vector<Weight*> weights;
      for (const WeightRef& ref : segment.weights) {
        weights.push_back(&leaves[ref.unit][ref.parameter]);
      }
      x = segment.run->forward({.batch = batch, .weights = weights}, x);
    }
    return x;
  }

  Model model;
  std::vector<std::vector<Weight>> leaves;
};

TEST(TrainStep, GradientsAreThoseOfOneGraph) {
  Setting setting;
  setting.accumulation = 1;
  Engine engine(arguments(setting));
  Reference reference;
  const Batch batch = toy::batch(5);
  const at::Tensor expected_loss = reference.loss(batch);
  expected_loss.backward();

  const Loss loss = engine.forward(batch);
  EXPECT_EQ(loss.value, expected_loss.item<float>());
  engine.backward(loss);
  std::size_t unit = 0;
  std::size_t parameter = 0;
  engine.for_each_gradient([&](const ParameterSpec& spec, std::span<const float> values) {
    const at::Tensor expected = reference.leaves[unit][parameter].value.grad();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float want = expected.defined() ? expected.data_ptr<float>()[i] : 0.0F;
      // A tied weight's two contributions are added in another order than autograd's.
      ASSERT_NEAR(values[i], want, 1e-7 + 1e-6 * std::abs(want)) << spec.name << "[" << i << "]";
    }
    if (++parameter == reference.leaves[unit].size()) {
      parameter = 0;
      ++unit;
    }
  });
  EXPECT_EQ(unit, reference.leaves.size());
  EXPECT_TRUE(engine.step().has_value());
}

TEST(TrainStep, FollowsAReferenceTrainerWithClippingAndAccumulation) {
  Setting setting;
  setting.accumulation = 2;
  const TrainingRun run = train(setting, 5);
  Reference reference;
  std::vector<std::array<at::Tensor, 2>> moments;
  for (int step = 0; step < 5; ++step) {
    double loss_sum = 0;
    for (int a = 0; a < 2; ++a) {
      const at::Tensor loss = reference.loss(toy::batch(step * 2 + a));
      (loss / 2).backward();
      loss_sum += loss.item<float>();
    }
    double squares = 0;
    for (auto& unit : reference.leaves) {
      for (Weight& weight : unit) {
        if (weight.value.grad().defined()) {
          squares += weight.value.grad().to(at::kDouble).square().sum().item<double>();
        }
      }
    }
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(run.losses[static_cast<std::size_t>(step)], loss_sum / 2, 2e-6) << "step " << step;
    EXPECT_NEAR(run.norms[static_cast<std::size_t>(step)] / norm, 1, 2e-6) << "step " << step;
    const double scale = std::min(1.0, setting.clip / (norm + 1e-6));
    EXPECT_LT(scale, 1) << "the test wants clipping to act";
    std::size_t index = 0;
    const at::AutoGradMode no_gradients(false);
    for (auto& unit : reference.leaves) {
      for (Weight& weight : unit) {
        at::Tensor g = weight.value.grad().defined() ? weight.value.grad().to(at::kDouble) * scale
                                                     : at::zeros_like(weight.value, at::kDouble);
        if (step == 0) {
          moments.push_back({at::zeros_like(g), at::zeros_like(g)});
        }
        auto& [m, v] = moments[index++];
        m = m * 0.9 + g * 0.1;
        v = v * 0.999 + g * g * 0.001;
        const at::Tensor mean = m / (1 - std::pow(0.9, step + 1));
        const at::Tensor deviation = (v / (1 - std::pow(0.999, step + 1))).sqrt() + 1e-8;
        const at::Tensor p = weight.value.to(at::kDouble);
        weight.value.copy_(p - p * (0.01 * 0.1) - mean / deviation * 0.01);
        weight.value.mutable_grad().reset();
      }
    }
  }
}

TEST(TrainStep, EveryScheduleGivesTheSameBits) {
  for (const std::string type : {"fp32", "bf16"}) {
    for (const int accumulation : {1, 3}) {
      Setting plain;
      plain.overlap = Overlap::kOff;
      plain.accumulation = accumulation;
      plain.type = type;
      const TrainingRun expected = train(plain);
      for (const Overlap overlap :
           {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull}) {
        for (const bool checkpointing : {false, true}) {
          for (const int threads : {1, 2}) {
            for (const int slots : {1, 2, 5}) {
              Setting setting = plain;
              setting.overlap = overlap;
              setting.checkpointing = checkpointing;
              setting.optimizer_threads = threads;
              setting.gather_slots = slots;
              EXPECT_EQ(train(setting), expected)
                  << name_of(overlap) << " checkpointing " << checkpointing << " threads "
                  << threads << " slots " << slots << " " << type;
            }
          }
        }
      }
    }
  }
}

TEST(TrainStep, DeepSpeedsLoopIsTrainStep) {
  Setting setting;
  setting.accumulation = 2;
  const TrainingRun expected = train(setting, 3);
  Engine engine(arguments(setting));
  for (std::size_t step = 0; step < 3; ++step) {
    std::optional<StepResult> result;
    for (int a = 0; a < 2; ++a) {
      EXPECT_FALSE(result.has_value());
      engine.backward(engine.forward(toy::batch(static_cast<int>(step) * 2 + a)));
      EXPECT_EQ(engine.is_gradient_accumulation_boundary(), a == 1);
      result = engine.step();
    }
    ASSERT_TRUE(result.has_value());
    EXPECT_EQ(result->loss, expected.losses[step]);
    EXPECT_EQ(result->verdict.norm.value, expected.norms[step]);
  }
  EXPECT_EQ(engine.global_steps(), 3);
}

TEST(TrainStep, EvaluationSeesTheNewestWeightsAndChangesNothing) {
  const Setting setting;
  const TrainingRun expected = train(setting, 4);
  Engine engine(arguments(setting));
  for (std::size_t step = 0; step < 4; ++step) {
    const Batch batch = toy::batch(static_cast<int>(step));
    EXPECT_EQ(engine.evaluate(batch), static_cast<float>(expected.losses[step]));
    EXPECT_EQ(engine.logits(batch).sizes(), (std::vector<std::int64_t>{4, 12, toy::kVocabulary}));
    EXPECT_EQ(engine.train_step(std::span(&batch, 1)).loss, expected.losses[step]);
  }
}

class Poisoned : public toy::TiedHead {
 public:
  explicit Poisoned(std::shared_ptr<int> calls, int from) : calls_(std::move(calls)), from_(from) {}
  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    const at::Tensor loss = toy::TiedHead::forward(context, input);
    return ++*calls_ > from_ ? loss * std::nan("") : loss;
  }

 private:
  std::shared_ptr<int> calls_;
  int from_;
};

TEST(TrainStep, AGradientThatIsNotFiniteSkipsTheStep) {
  InitializeArgs args = arguments({});
  args.model.segments.back().run = std::make_shared<Poisoned>(std::make_shared<int>(0), 1);
  args.options.max_skipped_steps = 3;
  Engine engine(std::move(args));
  const Batch batch = toy::batch(0);
  EXPECT_NE(engine.train_step(std::span(&batch, 1)).verdict.outcome, StepOutcome::kSkip);
  std::vector<float> before;
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    before.insert(before.end(), values.begin(), values.end());
  });
  for (int i = 0; i < 2; ++i) {
    const StepResult result = engine.train_step(std::span(&batch, 1));
    EXPECT_EQ(result.verdict.outcome, StepOutcome::kSkip);
    EXPECT_EQ(result.verdict.norm.bad_parameter, "embedding.weight");
  }
  std::vector<float> after;
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    after.insert(after.end(), values.begin(), values.end());
  });
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
  EXPECT_EQ(engine.skipped_steps(), 2);
  EXPECT_EQ(engine.global_steps(), 3);
  EXPECT_THAT([&] { engine.train_step(std::span(&batch, 1)); },
              ThrowsError(ExitCode::kBadState,
                          ::testing::HasSubstr("all weights are finite, and what first is not is "
                                               "the output of head")))
      << "the third skip in a row ends the run";
  std::vector<float> saved;
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    saved.insert(saved.end(), values.begin(), values.end());
  });
  EXPECT_EQ(saved.size(), before.size());
  EXPECT_EQ(std::memcmp(before.data(), saved.data(), before.size() * sizeof(float)), 0)
      << "the last good weights can still be had";
}

TEST(TrainStep, ResidentMemoryDoesNotGrow) {
  Engine engine(arguments({.overlap = Overlap::kOffload, .accumulation = 2}));
  const std::vector<Batch> batches = {toy::batch(0), toy::batch(1)};
  std::uint64_t at_step_20 = 0;
  for (int step = 1; step <= 500; ++step) {
    engine.train_step(batches);
    if (step == 20) {
      at_step_20 = machine::rss_bytes();
    }
  }
  EXPECT_LE(machine::rss_bytes(), at_step_20 + (1U << 20)) << "from step 20 to step 500";
}

class Throwing : public toy::Block {
 public:
  at::Tensor forward(const SegmentContext&, const at::Tensor&) const override {
    throw std::runtime_error("a segment of the user failed");
  }
};

TEST(TrainStep, ASegmentsExceptionReachesTheCallerAndTheEngineEnds) {
  for (const Overlap overlap : {Overlap::kOff, Overlap::kOffload}) {
    InitializeArgs args = arguments({.overlap = overlap});
    args.model.segments[2].run = std::make_shared<Throwing>();
    Engine engine(std::move(args));
    const Batch batch = toy::batch(0);
    EXPECT_THROW(engine.train_step(std::span(&batch, 1)), std::runtime_error);
  }
}

TEST(TrainStep, SlotsBelowWhatASegmentHoldsAreRefused) {
  // A segment over two blocks' units needs two slots at a time.
  class Pair : public toy::Block {
   public:
    at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
      return toy::Block::forward(context, input) + context.weights[3]->value;
    }
  };
  InitializeArgs args = arguments({.gather_slots = 1});
  args.model.units.push_back({"extra", {{"extra.weight", {toy::kHidden}}}});
  args.model.segments[1].weights.push_back({args.model.units.size() - 1, 0});
  args.model.segments[1].run = std::make_shared<Pair>();
  EXPECT_THAT([&] { Engine engine(std::move(args)); },
              ThrowsError(ExitCode::kUserInput, ::testing::HasSubstr("gather_slots is 1")));
}

}  // namespace
}  // namespace tandem
