// Where the optimizer state of each unit lies, on the host, on the device or streamed through it,
// changes no bit of losses, norms and weights: not on the simulated device, not on the fake GPU.
// And the placements that an option asks for are those that it says.
#include "engine/placement/placement.hpp"

#include <string>
#include <tuple>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/placements.hpp"
#include "tests/support/toy/training.hpp"
#include "tests/support/way.hpp"

namespace tandem {
namespace {

using test::DeviceRun;
using test::Pace;
using test::paces_of;
using test::steps_on;
using test::Way;
using ::testing::AllOf;
using ::testing::HasSubstr;
using toy::arguments;
using toy::kAllPlacements;
using toy::kDevice;
using toy::kHost;
using toy::kStreamed;
using toy::Setting;
using toy::train_on_ranks;
using toy::TrainingRun;

using RanksCase = std::tuple<std::string, int, Way>;
class PlacementsOnRanks : public ::testing::TestWithParam<RanksCase> {};
std::string name_of_case(const ::testing::TestParamInfo<RanksCase>& info) {
  const auto& [type, world_size, way] = info.param;
  return fmt::format("{}_{}ranks_{}", type, world_size, name_of(way));
}

TEST_P(PlacementsOnRanks, ChangeNoBit) {
  const auto& [type, world_size, way] = GetParam();
  const int steps = steps_on(way);
  const int accumulation = type == "fp16" ? 2 : 1;
  const double some =
      toy::middle_norm({.accumulation = accumulation * world_size, .type = type}, steps);
  // Limits that act never, in some steps, at every step.
  const std::vector<double> clips =
      way == Way::kSim ? std::vector{0.0, some} : std::vector{Setting().clip};
  // For several ranks comm is the same as offload, and they take long, as the fake GPU does.
  std::vector<Overlap> overlaps = {Overlap::kOff, Overlap::kOffload, Overlap::kFull};
  if (world_size == 1 && way == Way::kSim) {
    overlaps.push_back(Overlap::kComm);
  }
  for (const double clip : clips) {
    const Setting setting{
        .overlap = Overlap::kOff, .accumulation = accumulation, .type = type, .clip = clip};
    const TrainingRun expected = train_on_ranks(setting, world_size, steps);
    std::size_t turn = 0;
    toy::in_every_placement(setting, overlaps, [&](const Setting& there, const std::string& what) {
      const auto paces = paces_of(way);
      const Pace& pace = paces[++turn % paces.size()];
      const DeviceRun run(way, pace);
      EXPECT_EQ(train_on_ranks(run.on_device(there), world_size, steps), expected)
          << "clip " << clip << " " << what << ", " << pace.name;
      run.expect_orderly();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, PlacementsOnRanks,
                         ::testing::Combine(::testing::Values("fp32", "bf16", "fp16"),
                                            ::testing::Values(1, 2), test::kWays),
                         name_of_case);

class DevicePlacements : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, DevicePlacements, test::kWays, test::name_of_way);

TEST_P(DevicePlacements, ChangeNoBitInAnyLayout) {
  const int steps = steps_on(GetParam());
  for (const StateLayout layout : {StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
    for (const std::string type : {"fp32", "bf16"}) {
      if (layout == StateLayout::kSplit && type == "fp32") {
        continue;  // there is nothing to split
      }
      Setting setting{.type = type, .state_layout = layout};
      const TrainingRun expected = toy::train(setting, steps);
      for (const auto& placements : kAllPlacements) {
        for (const Pace& pace : paces_of(GetParam())) {
          for (const int stage : {2, 3}) {
            setting.placements = placements;
            setting.stage = stage;
            const DeviceRun run(GetParam(), pace);
            EXPECT_EQ(toy::train(run.on_device(setting), steps), expected)
                << name_of(layout) << " " << type << " stage " << stage << " placements "
                << &placements - kAllPlacements << ", " << pace.name;
            run.expect_orderly();
          }
        }
      }
    }
  }
}

/// By the option as by unit.
TEST_P(DevicePlacements, AreThoseOfThePlacementOption) {
  Setting setting{.type = "bf16"};
  const TrainingRun expected = toy::train(setting, 3);
  for (const Placement placement : {Placement::kGpu, Placement::kStream, Placement::kCpu}) {
    setting.placement = placement;
    const DeviceRun run(GetParam(), paces_of(GetParam()).back());
    EXPECT_EQ(toy::train(run.on_device(setting), 3), expected) << name_of(placement);
  }
}

/// The device updates before the verdict, and rolls back and updates again where that differs.
TEST_P(DevicePlacements, AreSpeculatedOn) {
  for (const auto& placements : kAllPlacements) {
    for (const double clip : {0.0, 0.01}) {
      const DeviceRun run(GetParam());
      const Setting setting{.type = "bf16", .clip = clip, .placements = placements};
      Engine engine(arguments(run.on_device(setting)));
      for (int step = 0; step < 4; ++step) {
        const Batch batch = toy::batch(step);
        const Verdict verdict = engine.train_step(std::span(&batch, 1)).verdict;
        EXPECT_TRUE(verdict.speculated);
        EXPECT_EQ(verdict.outcome, clip > 0 ? StepOutcome::kRollback : StepOutcome::kCommit);
      }
    }
  }
}

TEST_P(DevicePlacements, AreRefusedWhereTheyDoNotFit) {
  const DeviceRun run(GetParam(), test::kPaces[0], 60'000);
  Setting setting{.stage = 3, .placement = Placement::kGpu};
  EXPECT_THAT(
      [&] { Engine engine(arguments(run.on_device(setting))); },
      ThrowsError(ExitCode::kRefused, AllOf(HasSubstr("of unit \""), HasSubstr("placement cpu"))));
  setting.placement = Placement::kCpu;
  Engine fits(arguments(run.on_device(setting)));
}

// At `off` a step ends with its updates. At `full` it may return before they run, and stream their
// state: of its times only those of what never moves are certain.
TEST(Placements, NothingCrossesTheLinksWithAllOnTheDevice) {
  for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
    for (const int stage : {0, 3}) {
      for (const Placement placement : {Placement::kGpu, Placement::kStream, Placement::kCpu}) {
        SCOPED_TRACE(fmt::format("{}, stage {}, {}", name_of(overlap), stage, name_of(placement)));
        Setting setting{
            .stage = stage, .overlap = overlap, .type = "bf16", .device = DeviceKind::kSim};
        setting.placement = placement;
        Engine engine(arguments(setting));
        const Batch batch = toy::batch(0);
        (void)engine.train_step(std::span(&batch, 1));
        engine.drain();
        const Exposure exposure = engine.train_step(std::span(&batch, 1)).exposure;
        const auto expect_busy = [&](double seconds, bool busy) {
          if (!busy || overlap == Overlap::kOff) {
            EXPECT_EQ(seconds > 0, busy);
          }
        };
        expect_busy(exposure.to_host_busy_s, placement != Placement::kGpu);
        expect_busy(exposure.to_device_busy_s, placement != Placement::kGpu);
        expect_busy(exposure.optimizer_busy_s, placement == Placement::kCpu);
      }
    }
  }
}

TEST(Placements, NeedAnAccelerator) {
  for (const Placement placement : {Placement::kGpu, Placement::kStream}) {
    EXPECT_THAT([&] { Engine engine(arguments({.placement = placement})); },
                ThrowsError(ExitCode::kUserInput, HasSubstr(name_of(placement))));
  }
  EXPECT_THROW(Engine(arguments({.placements = {kDevice}})), Error);
  EXPECT_NO_THROW(Engine(arguments({.placement = Placement::kCpu})));
}

// ---- by hand ----
Model three_units(std::int64_t first, std::int64_t second, std::int64_t third) {
  Model model;
  model.units = {{"embedding", {{"e", {first}}}},
                 {"block 0", {{"a", {second}}}},
                 {"block 1", {{"b", {third}}}}};
  return model;
}

TEST(ForcedPlacements, TheRatioCountsBytes) {
  using Placements = std::vector<StatePlacement>;
  const Model model = three_units(300, 100, 100);
  EXPECT_EQ(forced_placements(model, Placement::kAuto, std::nullopt), Placements{});
  EXPECT_EQ(forced_placements(model, Placement::kCpu, std::nullopt), Placements{});
  EXPECT_EQ(forced_placements(model, Placement::kAuto, 1.0), Placements(3, kHost));
  EXPECT_EQ(forced_placements(model, Placement::kAuto, 0.0), Placements(3, kDevice));
  EXPECT_EQ(forced_placements(model, Placement::kGpu, std::nullopt), Placements(3, kDevice));
  EXPECT_EQ(forced_placements(model, Placement::kStream, std::nullopt), Placements(3, kStreamed));
  // 60 % may leave: the embedding; 40 %: it is too large, the blocks are not; 20 %: one of them.
  EXPECT_EQ(forced_placements(model, Placement::kAuto, 0.4), (Placements{kDevice, kHost, kHost}));
  EXPECT_EQ(forced_placements(model, Placement::kAuto, 0.6), (Placements{kHost, kDevice, kDevice}));
  EXPECT_EQ(forced_placements(model, Placement::kStream, 0.8),
            (Placements{kHost, kStreamed, kHost}));
  EXPECT_EQ(forced_placements(model, Placement::kAuto, 0.81), Placements(3, kHost));
}

TEST(ForcedPlacements, LeaveWhatIsFrozen) {
  Model model = three_units(300, 100, 100);
  model.units[0].parameters[0].frozen = true;
  EXPECT_EQ(forced_placements(model, Placement::kGpu, 0.5),
            (std::vector<StatePlacement>{kHost, kDevice, kHost}));
}

TEST(ForcedPlacements, TheConfigsRatioMeansTheSameAndTheFlagWins) {
  const auto parse = [](const char* ratio) {
    return parse_config(fmt::format(R"({{"train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "cpu"{}}}}}}})",
                                    ratio),
                        "test", 1);
  };
  EXPECT_EQ(offload_ratio_of(parse(""), {}), std::nullopt);
  EXPECT_EQ(offload_ratio_of(parse(R"(, "ratio": 0.75)"), {}), 0.75);
  EXPECT_EQ(offload_ratio_of(parse(R"(, "ratio": 1.0)"), {}), 1.0);
  EXPECT_EQ(offload_ratio_of(parse(R"(, "ratio": 0.75)"), {.offload_ratio = 0.5}), 0.5);
}

TEST(PlacementsText, JoinsNeighbours) {
  Model model;
  for (const char* name : {"embedding", "block 0", "block 1", "block 2", "block 3", "norm"}) {
    model.units.push_back({name, {{name, {4}}}});
  }
  EXPECT_EQ(placements_text(model, {}), "all on the host");
  EXPECT_EQ(placements_text(model, std::vector(6, kHost)), "all on the host");
  const std::vector<StatePlacement> placements = {kDevice,   kDevice, kDevice,
                                                  kStreamed, kHost,   kHost};
  EXPECT_EQ(placements_text(model, placements),
            "embedding, block 0-1 on the device; block 2 streamed through the device; "
            "block 3, norm on the host");
}

// As LoRA cuts a model: what is frozen stands between the adapters.
TEST(PlacementsText, JoinsNeighboursAmongWhatIsTrained) {
  Model model;
  for (int block = 0; block < 4; ++block) {
    model.units.push_back(
        {fmt::format("block {}", block), {{.name = "weight", .shape = {4}, .frozen = true}}});
    model.units.push_back({fmt::format("block {} adapters", block), {{"weight", {4}}}});
  }
  EXPECT_TRUE(model.units[0].frozen());
  std::vector<StatePlacement> placements(8, kHost);
  placements[1] = kDevice;
  EXPECT_EQ(placements_text(model, placements),
            "block 0 adapters on the device; block 1-3 adapters on the host");
}

}  // namespace
}  // namespace tandem
