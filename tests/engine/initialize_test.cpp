// tandem::initialize and the four things it gives, used as a DeepSpeed program would.
#include "engine/initialize.hpp"

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/actor.hpp"
#include "runtime/scope.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using toy::Setting;

/// Record i is row i of a batch of the toy model.
class Rows : public Dataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 40; }
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override {
    HostBatch batch{.rows = static_cast<std::int64_t>(indices.size()), .length = 12};
    for (const std::int64_t index : indices) {
      const Batch row = toy::batch(index, 1);
      const auto copy = [](const at::Tensor& from, std::vector<std::int64_t>& to) {
        to.insert(to.end(), from.data_ptr<std::int64_t>(), from.data_ptr<std::int64_t>() + 12);
      };
      copy(row.inputs, batch.inputs);
      copy(row.labels, batch.labels);
    }
    batch.tokens = batch.rows * batch.length;
    return batch;
  }
};

InitializeArgs with_data(const Setting& setting) {
  InitializeArgs args = toy::arguments(setting);
  args.dataset = std::make_shared<Rows>();
  args.seed = 3;
  return args;
}

TEST(Initialize, DeepSpeedsLoopIsTrainStep) {
  const Setting setting{.accumulation = 2};
  Engine expected(with_data(setting));
  auto [engine, optimizer, loader, scheduler] = initialize(with_data(setting));
  EXPECT_EQ(loader.size(), 10);
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(loader.epoch(), epoch);
    std::int64_t batches = 0;
    for (auto& batch : loader) {
      ++batches;
      auto loss = engine.forward(batch);
      engine.backward(loss);
      if (const auto step = engine.step()) {
        const auto same = expected.train_step();
        ASSERT_TRUE(same.has_value());
        EXPECT_EQ(step->loss, same->loss);
        EXPECT_EQ(step->verdict.norm.value, same->verdict.norm.value);
        EXPECT_EQ(step->tokens, same->tokens);
      }
    }
    EXPECT_EQ(batches, 10) << "a loop over the loader is one epoch";
  }
  EXPECT_EQ(engine.global_steps(), 10);
  EXPECT_EQ(optimizer.steps(), 10);
  EXPECT_EQ(optimizer.loss_scale(), 1);
}

TEST(Initialize, AnswersWhatPortedTrainersAsk) {
  Engine engine(with_data({.accumulation = 2}));
  EXPECT_FALSE(engine.was_step_applied());
  EXPECT_TRUE(std::isnan(engine.get_global_grad_norm()));
  double norm = 0;
  for (int step = 0; step < 3; ++step) {
    norm = engine.train_step()->verdict.norm.value;
  }
  EXPECT_TRUE(engine.was_step_applied());
  EXPECT_EQ(engine.get_global_grad_norm(), norm);
  EXPECT_EQ(engine.get_batch_info(), (std::array<std::int64_t, 3>{8, 4, 2}));
  EXPECT_EQ(engine.global_samples(), 24);
  EXPECT_EQ(engine.micro_steps(), 6);
  EXPECT_EQ(engine.get_data_parallel_rank(), 0);
  EXPECT_EQ(engine.get_type(), "AdamW");
  EXPECT_EQ(engine.get_mom(), (std::array{0.9, 0.999}));
}

TEST(Initialize, ALoopLeftEarlyGoesOnWhereItStood) {
  auto [engine, optimizer, loader, scheduler] = initialize(with_data({}));
  std::vector<std::int64_t> first;
  for (auto& batch : loader) {
    first.push_back(batch.inputs.sum().item<std::int64_t>());
    if (first.size() == 3) {
      break;
    }
  }
  std::int64_t rest = 0;
  for (auto& batch : loader) {
    (void)batch;
    ++rest;
  }
  EXPECT_EQ(rest, 7);
  std::vector<std::int64_t> second;
  for (auto& batch : loader) {
    second.push_back(batch.inputs.sum().item<std::int64_t>());
  }
  EXPECT_EQ(second.size(), 10U);
  EXPECT_NE(std::vector<std::int64_t>(second.begin(), second.begin() + 3), first)
      << "each epoch is shuffled anew";
}

TEST(Initialize, ReadsTheConfigForTheRanksThatTakePart) {
  const auto file = std::filesystem::path(::testing::TempDir()) /
                    fmt::format("ds {}.json", static_cast<int>(::getpid()));
  std::ofstream(file) << R"({"train_batch_size": 8, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.5}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 4,
                                                 "warmup_type": "linear"}}})";
  InitializeArgs args{.model = toy::model(), .config = file.string()};
  args.dataset = std::make_shared<Rows>();
  auto [engine, optimizer, loader, scheduler] = initialize(std::move(args));
  EXPECT_EQ(engine.config().batch.micro_batch_size, 4);
  std::vector<double> rates;
  for (int step = 0; step < 6; ++step) {
    rates.push_back(optimizer.get_lr());
    EXPECT_EQ(engine.get_lr(), rates.back());
    ASSERT_TRUE(engine.train_step().has_value());
    EXPECT_EQ(scheduler.get_last_lr(), rates.back());
    EXPECT_EQ(scheduler.lr_at(step + 1), rates.back());
  }
  EXPECT_EQ(rates, (std::vector<double>{0, 0, 0.025, 0.05, 0.1 * 0.75, 0.1}));
  std::filesystem::remove(file);

  InitializeArgs gone{.model = toy::model(), .config = file.string()};
  EXPECT_THAT([&] { (void)initialize(std::move(gone)); }, ThrowsError(ExitCode::kUserInput));
}

/// A trainer that is an actor: the test asks it for a step.
struct TrainOn {
  using Reply = double;
  std::int64_t batch = 0;
};
struct Trainer : Actor<Trainer, TrainOn> {
  explicit Trainer(Engine& engine) : Actor("trainer"), engine_(engine) {}
  Task<double> handle(TrainOn request) {
    const StepResult result = co_await engine_.train_step_on_loop({toy::batch(request.batch)});
    co_return result.loss;
  }
  Engine& engine_;
};

Task<std::vector<double>> ask_for_steps(Engine* engine, std::int64_t steps) {
  Scope scope(engine->loop());
  Trainer trainer(*engine);
  trainer.start(scope);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < steps; ++step) {
    losses.push_back(co_await trainer.address().ask(TrainOn{step}));
  }
  trainer.close();
  co_await scope.join();
  co_return losses;
}

TEST(Initialize, AStepIsATaskInsideOfAnActorSystem) {
  const toy::TrainingRun expected = toy::train({}, 4);
  Engine engine(toy::arguments({}));
  EXPECT_EQ(engine.loop().run(&ask_for_steps, &engine, 4), expected.losses);
}

TEST(Initialize, EvaluationModeKeepsNothingForABackward) {
  auto [engine, optimizer, loader, scheduler] = initialize(with_data({}));
  const Batch batch = toy::batch(1);
  engine.eval();
  EXPECT_FALSE(engine.training());
  const float before = engine.forward(batch).value;
  EXPECT_EQ(engine.forward(batch).value, before);
  EXPECT_EQ(engine.global_steps(), 0);
  engine.train();
  const Loss loss = engine.forward(batch);
  EXPECT_EQ(loss.value, before);
  engine.backward(loss);
  EXPECT_TRUE(engine.step().has_value());
  engine.eval();
  EXPECT_NE(engine.forward(batch).value, before);
}

TEST(Initialize, SkipsOfAFallingScaleDoNotEndARun) {
  InitializeArgs args{.model = toy::model(),
                      .config = parse_config(R"({"train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": true, "initial_scale_power": 40, "hysteresis": 6},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                                             "test", 1)};
  args.options.max_skipped_steps = 5;
  Engine engine(std::move(args));
  const Batch batch = toy::batch(0);
  int skipped = 0;
  while (engine.train_step(std::span(&batch, 1)).verdict.outcome == StepOutcome::kSkip) {
    ASSERT_LT(++skipped, 60);
  }
  EXPECT_GT(skipped, 20);
  InitializeArgs fixed{.model = toy::model(),
                       .config = parse_config(R"({"train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": true, "loss_scale": 1e12},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                                              "test", 1)};
  fixed.options.max_skipped_steps = 5;
  Engine stays(std::move(fixed));
  for (int step = 1; step < 5; ++step) {
    stays.train_step(std::span(&batch, 1));
  }
  EXPECT_THAT(
      [&] { stays.train_step(std::span(&batch, 1)); },
      ThrowsError(ExitCode::kBadState, testing::HasSubstr("is the gradient of the input of head")));
}

// A config that is made in code has met no parser.
TEST(Initialize, AScaleWhoseInverseIsNotFiniteCommitsNothing) {
  Config config = parse_config(R"({"train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": true, "loss_scale": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                               "test", 1);
  config.fp16.loss_scale = 1e-40;
  InitializeArgs args{.model = toy::model(), .config = std::move(config)};
  Engine engine(std::move(args));
  const Batch batch = toy::batch(0);
  const StepResult result = engine.train_step(std::span(&batch, 1));
  EXPECT_EQ(result.verdict.outcome, StepOutcome::kSkip);
  EXPECT_THAT(result.verdict.norm.bad_parameter, testing::HasSubstr("divided by the scale 1e-40"));
  engine.for_each_parameter([](const ParameterSpec& parameter, std::span<const float> values) {
    EXPECT_TRUE(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }))
        << parameter.name;
  });
}

TEST(Initialize, VisitsTheParametersThatAreWanted) {
  InitializeArgs args{.model = toy::model(),
                      .config = parse_config(R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                                             "test", 1)};
  Engine engine(std::move(args));
  std::vector<std::string> all;
  engine.for_each_parameter([&](const ParameterSpec& parameter, std::span<const float>) {
    all.push_back(parameter.name);
  });
  std::vector<std::string> visited;
  engine.for_each_parameter(
      [&](const ParameterSpec& parameter, std::span<const float> values) {
        visited.push_back(parameter.name);
        EXPECT_EQ(static_cast<std::int64_t>(values.size()), parameter.numel());
      },
      [&](const ParameterSpec& parameter) { return parameter.name == all[1]; });
  ASSERT_GT(all.size(), 2U);
  EXPECT_EQ(visited, std::vector{all[1]});
}

TEST(Initialize, Fp16SkipsOverflowsAndFindsItsScale) {
  InitializeArgs args{.model = toy::model(),
                      .config = parse_config(R"({"train_micro_batch_size_per_gpu": 4,
    "fp16": {"enabled": true, "initial_scale_power": 24, "hysteresis": 1, "loss_scale_window": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                                             "test", 1)};
  Engine engine(std::move(args));
  std::vector<float> untouched;
  const auto weights = [&] {
    std::vector<float> all;
    engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
      all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  };
  const std::vector<float> before = weights();
  double scale = std::ldexp(1.0, 24);
  const Batch batch = toy::batch(0);
  std::optional<StepResult> result;
  int skipped = 0;
  for (;;) {
    EXPECT_EQ(engine.loss_scale(), scale);
    result = engine.train_step(std::span(&batch, 1));
    EXPECT_EQ(result->loss_scale, scale) << "the scale that the step's gradients had";
    if (result->verdict.outcome == StepOutcome::kCommit) {
      break;
    }
    EXPECT_FALSE(result->verdict.norm.bad_parameter.empty());
    EXPECT_TRUE(weights() == before) << "a skipped step changes nothing";
    scale /= 2;
    ASSERT_LT(++skipped, 20);
  }
  EXPECT_GT(skipped, 0) << "2^24 overflows in fp16";
  EXPECT_EQ(engine.skipped_steps(), skipped);
  EXPECT_FALSE(weights() == before);
  // The norm is without the scale: that of fp32, to fp16's digits.
  Engine fp32({.model = toy::model(),
               .config = parse_config(R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}})",
                                      "test", 1)});
  const double norm = fp32.train_step(std::span(&batch, 1)).verdict.norm.value;
  EXPECT_NEAR(result->verdict.norm.value / norm, 1, 2e-3);
}

}  // namespace
}  // namespace tandem
