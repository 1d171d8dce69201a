// state.json: what is read back, and what is refused although its hash is right.
#include "engine/checkpoint/run_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
