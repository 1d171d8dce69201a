// The text forms of a step and of a run, and the formulas in them.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "engine/metrics/flops.hpp"
#include "engine/metrics/step_metrics.hpp"
#include "engine/metrics/summary.hpp"

namespace tandem {
namespace {

using simdjson::dom::element;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

StepMetrics sample_step() {
  return {.step = 12,
          .epoch = 0.25,
          .loss = 2.34561,
          .lr = 1e-5,
          .grad_norm = 1.5,
          .tokens = 1024,
          .step_time_s = 0.1234,
          .tokens_per_s = 8298.2,
          .tflops = 0.456,
          .overlap_efficiency = 0.875,
          .peak_host_bytes = 1 << 30};
}

TEST(StepMetrics, JsonLineHasEveryFieldOfTheContract) {
  const std::string line = json_line(sample_step());
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  simdjson::dom::parser parser;
  const element object = parser.parse(line);
  std::vector<std::string> names;
  for (const auto field : simdjson::dom::object(object)) {
    names.emplace_back(field.key);
  }
  EXPECT_THAT(names,
              testing::ElementsAre(
                  "step", "epoch", "loss", "lr", "grad_norm", "loss_scale", "tokens", "step_time_s",
                  "tokens_per_s", "tflops", "overlap_efficiency", "optimizer_s",
                  "exposed_optimizer_s", "exposed_gather_s", "exposed_reduce_s", "exposed_data_s",
                  "exposed_checkpoint_s", "exposed_disk_s", "exposed_activation_s", "disk_busy_s",
                  "verdict", "speculated", "peak_host_bytes", "peak_device_bytes"));
  EXPECT_EQ(double(object["loss"]), 2.34561);
  EXPECT_EQ(std::string_view(object["verdict"]), "commit");
}

TEST(StepMetrics, ADivergedLossStaysVisibleInValidJson) {
  StepMetrics m = sample_step();
  m.loss = std::nan("");
  m.grad_norm = std::numeric_limits<double>::infinity();
  simdjson::dom::parser parser;
  const element object = parser.parse(json_line(m));
  EXPECT_EQ(std::string_view(object["loss"]), "NaN");
  EXPECT_EQ(std::string_view(object["grad_norm"]), "Infinity");
  EXPECT_THAT(console_line(m), HasSubstr("Loss: nan"));
}

TEST(StepMetrics, ConsoleLineStartsAsTheExamplesDoes) {
  EXPECT_THAT(console_line(sample_step()),
              StartsWith("Step   12 | Loss: 2.3456 | Time:   123ms | TFLOPS:  0.46 | "
                         "Tokens/s:   8298 | LR: 1.00e-05"));
  StepMetrics skipped = sample_step();
  skipped.verdict = "skip";
  EXPECT_THAT(console_line(skipped), testing::EndsWith(" | skip"));
}

TEST(Flops, ExampleFormula) {
  const FlopShape shape{.parameters = 1'000'000, .layers = 2, .hidden = 64};
  // (2*3*1e6*128 + 4*3*2*64*128^2) / 1e12 * 4 sequences / 0.5 s
  EXPECT_DOUBLE_EQ(example_tflops(shape, 4, 128, 0.5), (768e6 + 25165824) / 1e12 * 4 / 0.5);
  FlopShape recomputed = shape;
  recomputed.activation_checkpointing = true;
  EXPECT_DOUBLE_EQ(example_tflops(recomputed, 4, 128, 0.5),
                   example_tflops(shape, 4, 128, 0.5) * 4 / 3);
  EXPECT_EQ(example_tflops(shape, 4, 128, 0), 0);
}

TEST(Flops, ModelFormulaCountsWhatATokenMeets) {
  // An embedding of 7000, a layer of 5000 of which 1500 are other experts', attention 64 wide over
  // 16 keys, a tied head.
  Model model;
  model.units = {{"embedding", {{"e", {1000, 7}}}}, {"layer", {{"w", {50, 100}}}}};
  model.segments = {{.name = "embedding", .weights = {{0, 0}}, .cost = {.looks_up = true}},
                    {.name = "layer",
                     .weights = {{1, 0}},
                     .cost = {.idle_weights = 1500, .attention_width = 64, .attention_window = 16}},
                    {.name = "head", .weights = {{0, 0}}}};
  const double weights = 5000 - 1500 + 7000;
  EXPECT_DOUBLE_EQ(model_flops_per_token(model, 128), 3 * (2 * weights + 4 * 64 * 16));
  EXPECT_DOUBLE_EQ(model_flops_per_token(model, 8), 3 * (2 * weights + 4 * 64 * 8));
}

TEST(Summary, QuantilesInterpolateAsNumpyDoes) {
  const Quantiles q = quantiles_of({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(q.median, 2.5);
  EXPECT_DOUBLE_EQ(q.p10, 1.3);
  EXPECT_DOUBLE_EQ(q.p90, 3.7);
  EXPECT_EQ(quantiles_of({7}).p90, 7);
  EXPECT_EQ(quantiles_of({}).median, 0);
}

TEST(Summary, QuantilesOfManyStepsTakeNoMoreMemoryAndAreCloseBy) {
  StepTimes times;
  std::vector<double> all;
  for (int step = 0; step < 100'000; ++step) {
    const double seconds = 1e-3 * (1 + (step * 7919 % 100'003) / 1e4) * (step % 50 == 0 ? 30 : 1);
    times.add(seconds);
    all.push_back(seconds);
    if (step + 1 == static_cast<int>(StepTimes::kExact)) {
      EXPECT_EQ(times.quantiles().p90, quantiles_of(all).p90) << "exact so far";
    }
  }
  const Quantiles exact = quantiles_of(all);
  const Quantiles close = times.quantiles();
  EXPECT_EQ(times.count(), 100'000);
  EXPECT_NEAR(close.median, exact.median, 0.004 * exact.median);
  EXPECT_NEAR(close.p10, exact.p10, 0.004 * exact.p10);
  EXPECT_NEAR(close.p90, exact.p90, 0.004 * exact.p90);
}

StepMetrics step_of(double time_s, double loss) {
  return {.loss = loss,
          .tokens = 100,
          .step_time_s = time_s,
          .tflops = 2 / time_s,
          .overlap_efficiency = 0.5,
          .exposed_optimizer_s = 0.01};
}

TEST(Summary, LeavesWarmUpOutOfTheFigures) {
  SummaryBuilder builder(1);
  builder.add(step_of(100, 5));
  builder.add(step_of(1, 4));
  StepMetrics skipped = step_of(3, 3);
  skipped.verdict = "skip";
  builder.add(skipped);
  const RunSummary s = builder.summary();
  EXPECT_EQ(s.steps, 3);
  EXPECT_EQ(s.warmup_steps, 1);
  EXPECT_EQ(s.loss_first, 5);
  EXPECT_EQ(s.loss_last, 3);
  EXPECT_DOUBLE_EQ(s.step_time_s.median, 2);
  EXPECT_DOUBLE_EQ(s.tokens_per_s, 50) << "200 tokens in 4 s";
  EXPECT_DOUBLE_EQ(s.tflops, 1) << "work over time, not the mean of rates";
  EXPECT_DOUBLE_EQ(s.exposed_optimizer_s, 0.01);
  EXPECT_EQ(s.speculation_skips, 1);
}

TEST(Summary, ARunShorterThanItsWarmUpStillHasFigures) {
  SummaryBuilder builder(15);
  builder.add(step_of(2, 5));
  const RunSummary s = builder.summary();
  EXPECT_EQ(s.warmup_steps, 0);
  EXPECT_DOUBLE_EQ(s.step_time_s.median, 2);
  EXPECT_EQ(SummaryBuilder(3).summary().steps, 0);
}

TEST(Summary, JsonHasTheContractsShape) {
  SummaryBuilder builder;
  builder.add(step_of(2, 5));
  RunSummary s = builder.summary();
  s.memory["host"] = {.predicted_bytes = 10, .actual_bytes = 11};
  s.flags = {{"lr", "1e-3"}};
  simdjson::dom::parser parser;
  const element object = parser.parse(summary_json(s));
  EXPECT_EQ(double(object["step_time_s"]["median"]), 2);
  EXPECT_EQ(std::int64_t(object["memory"]["host"]["predicted_bytes"]), 10);
  EXPECT_EQ(std::int64_t(object["speculation"]["rollbacks"]), 0);
  EXPECT_EQ(std::string_view(object["flags"]["lr"]), "1e-3");
  for (const char* name : {"steps", "warmup_steps", "loss_first", "loss_last", "tokens_per_s",
                           "tflops", "mfu", "peak_tflops", "overlap_efficiency", "optimizer_s",
                           "exposed_optimizer_s", "device", "world_size", "version"}) {
    element value;
    EXPECT_EQ(object[name].get(value), simdjson::SUCCESS) << name;
  }
  EXPECT_TRUE(object["mfu"].is_null()) << "none was taken";
  s.mfu = 0.25;
  EXPECT_THAT(summary_json(s), HasSubstr(R"("mfu": 0.25)"));
  EXPECT_THAT(summary_text(s), AllOf(HasSubstr("50 tokens/s"), HasSubstr("host memory")));
}

TEST(Summary, CountsMicroBatchesAndStepsWithoutALabel) {
  SummaryBuilder builder;
  builder.add(step_of(2, 5));
  EXPECT_THAT(summary_text(builder.summary()), Not(HasSubstr("unlabelled")));
  StepMetrics step = step_of(2, 5);
  step.micro_batches_unlabelled = 3;
  builder.add(step);
  step.micro_batches_unlabelled = 4;
  step.unlabelled = true;
  builder.add(step);
  simdjson::dom::parser parser;
  const element object = parser.parse(summary_json(builder.summary()));
  EXPECT_EQ(std::int64_t(object["unlabelled"]["micro_batches"]), 7);
  EXPECT_EQ(std::int64_t(object["unlabelled"]["steps"]), 1);
  EXPECT_THAT(summary_text(builder.summary()),
              HasSubstr("7 micro-batches had no label; 1 steps had none at all"));
}

TEST(Summary, AnOptimizerThatIsWaitedForLongerThanItWorksGainsNothing) {
  RunSummary s;
  s.step_time_s.median = 0.1;
  s.optimizer_s = 0.00023;
  s.exposed_optimizer_s = 0.00113;
  EXPECT_THAT(summary_text(s),
              AllOf(HasSubstr("works 0.23 ms per step; compute waits 1.13 ms for it, and "
                              "for its gradients\n"),
                    Not(HasSubstr("gained"))));
  s.exposed_optimizer_s = 0.00003;
  EXPECT_THAT(summary_text(s), AllOf(HasSubstr("for it\n"), HasSubstr("would take 0.2 % longer")));
}

TEST(Summary, APeakBelowWhatTheStepsDidIsNoPeak) {
  RunSummary s;
  set_utilisation(s, 1.5, {.best_tflops = 1, .median_tflops = 1}, 2);
  EXPECT_EQ(s.mfu, 0.75);
  EXPECT_THAT(summary_text(s), HasSubstr("MFU 75.0 %"));
  set_utilisation(s, 2.4, {.best_tflops = 1, .median_tflops = 1}, 1);
  EXPECT_EQ(s.mfu, 0);
  EXPECT_THAT(summary_text(s), HasSubstr("no MFU: a peak of 1.000 was measured beside other work"));
}

TEST(Summary, APeakOfMatmulsThatDifferIsNoPeak) {
  RunSummary s;
  set_utilisation(s, 0.5, {.best_tflops = 1, .median_tflops = 0.7}, 1);
  EXPECT_EQ(s.mfu, 0);
  EXPECT_THAT(summary_text(s), HasSubstr("no MFU: a peak of 1.000 was measured beside other work"));
  set_utilisation(s, 0.5, {}, 1);
  EXPECT_THAT(summary_text(s), Not(HasSubstr("MFU")));
}

}  // namespace
}  // namespace tandem
