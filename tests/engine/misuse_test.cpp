// Calls of the engine in a wrong order, or with what it cannot take: each is an Error of one line
// that says what to do, and the engine is as before. A call that failed amid a step is the end of
// it, which every later call says.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/event_loop.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using toy::Setting;

std::vector<Batch> batches_of(std::int64_t first, std::int64_t count) {
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < count; ++i) {
    batches.push_back(toy::batch(first + i));
  }
  return batches;
}

/// Losses and norms of two steps.
std::vector<double> two_steps(Engine& engine, int micro_batches) {
  std::vector<double> numbers;
  for (int step = 0; step < 2; ++step) {
    const StepResult result =
        engine.train_step(batches_of(std::int64_t{step} * micro_batches, micro_batches));
    numbers.push_back(result.loss);
    numbers.push_back(result.verdict.norm.value);
  }
  return numbers;
}

class OneRow : public Dataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 1; }
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> /*indices*/) const override {
    return {.rows = 1, .length = 4, .tokens = 4, .inputs = {1, 2, 3, 4}, .labels = {1, 2, 3, 4}};
  }
};

class Misuse : public ::testing::Test {
 protected:
  template <class Call>
  void refused(Call call, const std::string& text) {
    const std::string said = error_text(call);
    EXPECT_THAT(said, HasSubstr(text));
    EXPECT_THAT(said, HasSubstr("[engine] "));
  }

  Engine engine_{toy::arguments({.accumulation = 2})};
};

TEST_F(Misuse, IsRefusedWithinAStep) {
  const std::vector<double> expected = [] {
    Engine other(toy::arguments({.accumulation = 2}));
    return two_steps(other, 2);
  }();
  const Batch batch = toy::batch(0);
  Loss loss = engine_.forward(batch);
  refused([&] { engine_.forward(batch); }, "twice without backward()");
  engine_.backward(loss);
  // Between two micro-steps.
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"evaluate()", [&] { engine_.evaluate(batch); }},
      {"logits()", [&] { (void)engine_.logits(batch); }},
      {"eval()", [&] { engine_.eval(); }},
      {"train_step()", [&] { engine_.train_step(); }},
      {"train_step()", [&] { engine_.train_step(batches_of(0, 2)); }},
      {"train_step()", [&] { (void)engine_.train_step_on_loop(batches_of(0, 2)); }},
      {"begin_checkpoint()", [&] { engine_.save_checkpoint("nowhere"); }},
      {"load_checkpoint()", [&] { engine_.load_checkpoint("nowhere"); }},
      {"load_foreign()", [&] { engine_.load_foreign({}); }},
      {"comms_summary()", [&] { (void)engine_.comms_summary(); }},
  };
  for (const auto& [name, call] : calls) {
    refused(call, name + " was called within a step, after 1 of its 2 backward() calls");
  }
  EXPECT_FALSE(engine_.step().has_value()) << "not yet due";
  engine_.backward(engine_.forward(toy::batch(1)));
  refused([&] { engine_.forward(batch); }, "after the last of a step's 2 micro-batches");
  const auto first = engine_.step();
  ASSERT_TRUE(first.has_value());
  const StepResult second = engine_.train_step(batches_of(2, 2));
  EXPECT_EQ(
      (std::vector{first->loss, first->verdict.norm.value, second.loss, second.verdict.norm.value}),
      expected)
      << "what was refused has changed nothing";
}

TEST_F(Misuse, IsRefusedForWhatIsNotThere) {
  refused([&] { engine_.train_step(); }, "InitializeArgs::dataset is null");
  refused([&] { engine_.train_step(std::vector<Batch>{}); }, "no micro-batch");
  EXPECT_EQ(engine_.global_steps(), 0);
  EXPECT_NO_THROW(engine_.train_step(batches_of(0, 2)));
}

TEST_F(Misuse, StepsTakeAnyNumberOfMicroBatches) {
  for (const int count : {1, 3}) {
    for (const char* type : {"fp32", "bf16"}) {
      // The same as that number in the config.
      Engine expected(toy::arguments({.accumulation = count == 1 ? 2 : count, .type = type}));
      Engine given(toy::arguments({.accumulation = count == 1 ? 3 : 2, .type = type}));
      EXPECT_EQ(two_steps(given, count), two_steps(expected, count)) << type << " of " << count;
    }
  }
  Engine one(toy::arguments({.accumulation = 1}));
  Engine three(toy::arguments({.accumulation = 3}));
  EXPECT_EQ(two_steps(one, 3), two_steps(three, 3)) << "gradients of fp32 are added anywhere";
}

TEST_F(Misuse, AStepOfSeveralNeedsRoomToAddThem) {
  Engine kept(toy::arguments({.accumulation = 1, .type = "bf16"}));
  refused([&] { kept.train_step(batches_of(0, 3)); }, "no room to add gradients of 16 bits");
  EXPECT_NO_THROW(kept.train_step(batches_of(0, 1)));
}

TEST_F(Misuse, StepsOfRanksTakeAnyNumberOfMicroBatches) {
  const auto on_two = [](int in_config) {
    return on_ranks(2, [&](std::shared_ptr<Communicator> ranks) {
      Engine engine(toy::arguments({.accumulation = in_config, .type = "bf16"}, std::move(ranks)));
      return two_steps(engine, 3);
    });
  };
  EXPECT_EQ(on_two(1), on_two(3));
}

TEST_F(Misuse, RanksWithDifferentNumbersOfMicroBatchesAreNamed) {
  for (const bool tokens : {false, true}) {
    SCOPED_TRACE(tokens ? "mean of tokens" : "mean of micro-batches");
    const auto losses = on_ranks(2, [&](std::shared_ptr<Communicator> ranks) {
      const int rank = ranks->rank();
      InitializeArgs args = toy::arguments({.accumulation = 2}, ranks);
      args.options.loss_mean = tokens ? LossMean::kTokens : LossMean::kMicroBatches;
      Engine engine(std::move(args));
      for (const std::int64_t own : {0, 1, 3}) {
        const std::string said =
            error_text([&] { engine.train_step(batches_of(0, rank == 0 ? 2 : own)); });
        EXPECT_THAT(
            said, HasSubstr(fmt::format("handed 2 micro-batches by rank 0 and {} by rank 1", own)));
      }
      return two_steps(engine, 2);  // as before
    });
    EXPECT_EQ(losses[0], losses[1]);
  }
}

TEST_F(Misuse, ParametersAreNotShownWhileRanksGatherAhead) {
  on_ranks(2, [&](std::shared_ptr<Communicator> ranks) {
    Engine engine(toy::arguments({.accumulation = 2}, std::move(ranks)));
    const auto nothing = [](const ParameterSpec&, std::span<const float>) {};
    engine.backward(engine.forward(toy::batch(engine.rank())));
    refused([&] { engine.for_each_parameter(nothing); }, "for_each_parameter() was called within");
    refused([&] { engine.for_each_gradient(nothing); }, "for_each_gradient() was called within");
    engine.backward(engine.forward(toy::batch(2 + engine.rank())));
    engine.for_each_gradient(nothing);
    engine.for_each_parameter(nothing);
    return engine.step()->loss;
  });
}

TEST_F(Misuse, WrongSizesAreRefused) {
  InitializeArgs args = toy::arguments({});
  args.dataset = std::make_shared<OneRow>();
  args.prefetch.workers = 0;
  refused([&] { Engine engine(std::move(args)); }, "prefetch has 0 workers");
  const OneRow data;
  refused([&] { engine_.evaluate_sums(data, {.micro_batch = 0}); }, "of 0 records");
  EXPECT_NO_THROW(engine_.evaluate_sums(data, {.micro_batch = 1}));
}

/// A data set of `records`, each with a token less than it says.
class Wrong : public Dataset {
 public:
  explicit Wrong(std::int64_t records) : records_(records) {}
  [[nodiscard]] std::int64_t size() const override { return records_; }
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override {
    return {.rows = std::ssize(indices), .length = 4, .inputs = {1, 2, 3}, .labels = {1, 2, 3}};
  }

 private:
  std::int64_t records_;
};

TEST_F(Misuse, DataSetsOfTheCallersAreChecked) {
  InitializeArgs args = toy::arguments({});
  args.dataset = std::make_shared<Wrong>(0);
  EXPECT_THAT(error_text([&] { Engine engine(std::move(args)); }), HasSubstr("has 0 records"));
  const std::string said = error_text([&] { engine_.evaluate_sums(Wrong(1)); });
  EXPECT_THAT(said, HasSubstr("collate() gave 3 values for a batch of [1, 4]"));
}

TEST_F(Misuse, AnEngineThatFailedAmidAStepSaysSo) {
  Batch wrong = toy::batch(0);
  wrong.inputs = wrong.inputs.slice(1, 0, 6).contiguous() + toy::kVocabulary;  // no such token
  wrong.labels = wrong.labels.slice(1, 0, 6).contiguous();
  EXPECT_ANY_THROW(engine_.forward(wrong));
  // With the cause's exit code.
  const std::string said = error_text([&] { engine_.train_step(batches_of(0, 2)); });
  EXPECT_THAT(said, HasSubstr("an earlier call failed amid a step"));
  EXPECT_EQ(error_text([&] { engine_.evaluate(toy::batch(0)); }), said);
}

}  // namespace
}  // namespace tandem
