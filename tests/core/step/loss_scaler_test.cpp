// The loss scaler against DeepSpeed's own traces, and at its corners.
#include "engine/step/loss_scaler.hpp"

#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using simdjson::dom::element;
using ::testing::HasSubstr;

TEST(LossScaler, FollowsTheReferenceTraces) {
  simdjson::dom::parser parser;
  const element traces = parser.load(test::source_path("tests/data/optimizers/scaler.json"));
  int ended = 0;
  int count = 0;
  for (const element& trace : simdjson::dom::array(traces)) {
    SCOPED_TRACE(std::string_view(trace["name"]));
    ++count;
    LossScaler scaler(
        {.initial_scale_power = static_cast<int>(std::int64_t(trace["initial_scale_power"])),
         .window = static_cast<int>(std::int64_t(trace["loss_scale_window"])),
         .hysteresis = static_cast<int>(std::int64_t(trace["hysteresis"])),
         .consecutive_hysteresis = bool(trace["consecutive_hysteresis"]),
         .min_scale = double(trace["min_loss_scale"])});
    const std::string_view script = trace["script"];
    const std::size_t steps = simdjson::dom::array(trace["scale_used"]).size();
    const bool raises = !trace["raised"].is_null();
    ended += raises ? 1 : 0;
    ASSERT_TRUE(raises || steps == script.size());
    for (std::size_t step = 0; step < steps; ++step) {
      ASSERT_EQ(scaler.scale(), double(trace["scale_used"].at(step))) << "step " << step;
      if (raises && step + 1 == steps) {
        EXPECT_THROW(scaler.update(script[step] == 'O'), Error);
        break;
      }
      scaler.update(script[step] == 'O');
      ASSERT_EQ(scaler.scale(), double(trace["scale_after"].at(step))) << "step " << step;
      ASSERT_EQ(scaler.state().hysteresis, std::int64_t(trace["hysteresis_after"].at(step)))
          << "step " << step;
    }
  }
  EXPECT_EQ(count, 4);
  EXPECT_EQ(ended, 1);
}

constexpr LossScalerConfig kShort = {.initial_scale_power = 4, .window = 2};

/// The scale after each step of a script, 'O' for an overflow.
std::vector<double> run(LossScaler& scaler, std::string_view script) {
  std::vector<double> scales;
  for (const char step : script) {
    scaler.update(step == 'O');
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(LossScaler, TheFirstOverflowCostsHysteresisTheNextTheScale) {
  LossScaler scaler(kShort);
  EXPECT_EQ(run(scaler, "OO...O"), (std::vector<double>{16, 8, 8, 8, 16, 16}));
  EXPECT_EQ(scaler.state().hysteresis, 1);
}

TEST(LossScaler, GrowsAfterOneStepMoreThanTheWindow) {
  LossScaler scaler(kShort);
  EXPECT_EQ(run(scaler, "....."), (std::vector<double>{16, 16, 32, 32, 64}));
}

TEST(LossScaler, TheDefaultsAreDeepSpeeds) {
  LossScaler scaler((LossScalerConfig()));
  EXPECT_EQ(scaler.scale(), 65536);
  run(scaler, std::string(1000, '.'));
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 131072);
}

TEST(LossScaler, EndsAtTheMinimumWithOneLine) {
  LossScaler scaler({.initial_scale_power = 2, .hysteresis = 1, .min_scale = 3});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 3) << "half of 4 is below the minimum";
  const LossScaler::State before = scaler.state();
  EXPECT_THAT([&] { scaler.update(true); },
              ThrowsError(ExitCode::kBadState, HasSubstr("least loss scale 3;")));
  EXPECT_EQ(scaler.state(), before);
}

TEST(LossScaler, AFixedScaleStays) {
  LossScaler scaler({.static_scale = 128, .hysteresis = 1, .min_scale = 128});
  EXPECT_FALSE(scaler.is_dynamic());
  run(scaler, "OOO" + std::string(3000, '.'));
  EXPECT_EQ(scaler.scale(), 128);
  scaler.restore({.scale = 2, .step = 9, .last_overflow = 3, .hysteresis = 1});
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, GoesOnFromASavedState) {
  constexpr std::string_view kScript = "O.O..OO.....O..OO.......O";
  for (const bool consecutive : {false, true}) {
    LossScalerConfig config = kShort;
    config.initial_scale_power = 12;
    config.consecutive_hysteresis = consecutive;
    LossScaler whole(config);
    const std::vector<double> expected = run(whole, kScript);
    for (std::size_t cut = 0; cut <= kScript.size(); ++cut) {
      LossScaler first(config);
      run(first, kScript.substr(0, cut));
      LossScaler second(config);
      second.restore(first.state());
      EXPECT_EQ(
          run(second, kScript.substr(cut)),
          std::vector<double>(expected.begin() + static_cast<std::ptrdiff_t>(cut), expected.end()));
      EXPECT_EQ(second.state(), whole.state()) << "cut at " << cut;
    }
  }
}

TEST(LossScaler, ALowerHysteresisHoldsAfterRestore) {
  LossScaler scaler({.initial_scale_power = 4, .hysteresis = 1});
  scaler.restore({.scale = 16, .step = 7, .last_overflow = -1, .hysteresis = 2});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8);
}

}  // namespace
}  // namespace tandem
