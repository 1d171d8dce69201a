// state.json: what is read back, and what is refused although its hash is right.
#include "engine/checkpoint/run_state.hpp"

#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/checkpoint/changed_settings.hpp"
#include "engine/config/config.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunState a_run() {
  return {.global_steps = 100,
          .applied_steps = 97,
          .schedule_steps = 97,
          .skipped_steps = 3,
          .skipped_in_a_row = 1,
          .scaler = LossScaler::State{.scale = 4096, .step = 100, .last_overflow = 99},
          .micro_batches = 400,
          .batches_taken = 400,
          .epoch = 5,
          .epoch_micro_batches = 80,
          .parameters = "p",
          .optimizer = "AdamW",
          .data = "d",
          .seed = UINT64_MAX,
          .micro_batch_size = 2,
          .step_micro_batches = 4,
          .precision = "fp16",
          .state_layout = "fp32",
          .version = "v"};
}

TEST(RunStateText, IsReadBack) {
  const RunState run = a_run();
  const RunState read = RunState::parse(run.json(), "state.json");
  EXPECT_EQ(read.json(), run.json());
  EXPECT_EQ(read.seed, UINT64_MAX);
}

RunState run_with(std::string config, std::vector<std::pair<std::string, std::string>> settings) {
  RunState run = a_run();
  run.config = std::move(config);
  run.settings = std::move(settings);
  return RunState::parse(run.json(), "state.json");
}

TEST(ChangedSettings, AreALineEachWithBothValues) {
  const RunState saved = run_with(
      R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.9, 0.999]}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
          "gradient_clipping": 1, "zero_optimization": {"stage": 3}, "fp16": {"enabled": true,
          "initial_scale_power": 16}})",
      {{"--steps", "4"}, {"--warmup", "0.01"}});
  EXPECT_THAT(changed_settings(saved, saved), testing::IsEmpty());
  const RunState now = run_with(
      R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.0005, "betas": [0.9, 0.99]}},
          "scheduler": {"type": "", "params": {}}, "gradient_clipping": 0.1,
          "zero_optimization": {"stage": 0}, "decay_norms": false,
          "fp16": {"enabled": true, "initial_scale_power": 12}})",
      {{"--steps", "8"}, {"--warmup", "0.01"}});
  EXPECT_THAT(
      changed_settings(saved, now),
      testing::UnorderedElementsAre(
          "optimizer.params.lr: 0.001 in the checkpoint, 0.0005 now: the new value is taken",
          "optimizer.params.betas: [0.9,0.999] in the checkpoint, [0.9,0.99] now: the new value is "
          "taken",
          R"(scheduler.type: "WarmupLR" in the checkpoint, "" now: the new value is taken)",
          "scheduler.params.warmup_num_steps: 4 in the checkpoint, not there now: the new value is "
          "taken",
          "gradient_clipping: 1 in the checkpoint, 0.1 now: the new value is taken",
          "decay_norms: true in the checkpoint, false now: the new value is taken",
          "fp16.initial_scale_power: 16 in the checkpoint, 12 now: the scale goes on from the "
          "checkpoint's",
          "--steps: 4 in the checkpoint, 8 now: the new value is taken"));
}

TEST(ChangedSettings, EachKeyIsOnThePage) {
  std::ostringstream page;
  page << std::ifstream(test::source_path("docs/checkpoints.md")).rdbuf();
  const std::string config = resolved_json(parse_config(
      R"({"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}})",
      "ds.json"));
  RunState known = run_with(R"({"gradient_clipping": 77})", {});
  const std::vector<std::string> lines = changed_settings(known, run_with(config, {}));
  EXPECT_GE(lines.size(), 15U);
  for (const std::string& line : lines) {
    const std::string key = line.substr(0, line.find_first_of(".:"));
    EXPECT_THAT(page.str(), HasSubstr("`" + key)) << line;
  }
  for (const char* words : {"the new value is taken", "the checkpoint's scale is kept", "`--steps`",
                            "`--lr_scheduler`", "`--warmup`"}) {
    EXPECT_THAT(page.str(), HasSubstr(words));
  }
}

TEST(ChangedSettings, OfACheckpointThatKnowsNoneThereIsNoLine) {
  const RunState now =
      run_with(R"({"gradient_clipping": 0.1, "decay_norms": true})", {{"--steps", "8"}});
  EXPECT_THAT(changed_settings(run_with("", {}), now), testing::IsEmpty());
  EXPECT_THAT(changed_settings(run_with(R"({"gradient_clipping": 0.1})", {}), now),
              testing::IsEmpty());
}

/// The text with `value` for the key.
std::string with(const std::string& key, const std::string& value) {
  std::string text = a_run().json();
  const std::size_t at = text.find("\"" + key + "\": ") + key.size() + 4;
  text.replace(at, text.find_first_of(",\n", at) - at, value);
  return text;
}

TEST(RunStateText, CountsThatNoRunHasAreRefused) {
  constexpr const char* kMost = "9223372036854775807";
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"step", kMost},
                                                        {"step", "-1"},
                                                        {"step", "2"},  // fewer than were skipped
                                                        {"applied_steps", kMost},
                                                        {"schedule_steps", kMost},
                                                        {"skipped_steps", "101"},
                                                        {"skipped_in_a_row", "4"},
                                                        {"next_micro_batch", kMost},
                                                        {"batches_taken", kMost},
                                                        {"batches_taken", "480"},
                                                        {"epoch", kMost},
                                                        {"epoch", "4"},
                                                        {"epoch_micro_batches", kMost},
                                                        {"micro_batch_size", kMost},
                                                        {"step_micro_batches", kMost},
                                                        {"scale", "0"},
                                                        {"last_overflow", kMost},
                                                        {"seed", "\"x\""},
                                                        {"seed", "\"-1\""},
                                                        {"seed", "\"12 \""},
                                                        {"seed", "\"18446744073709551616\""}}) {
    EXPECT_THAT([&] { (void)RunState::parse(with(key, value), "F/state.json"); },
                ThrowsError(ExitCode::kUserInput, HasSubstr("F/state.json")))
        << key << " = " << value;
  }
}

}  // namespace
}  // namespace tandem
