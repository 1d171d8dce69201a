// The placement of a run: the bytes that the solver reckons with are those that a rank allocates;
// the user's words, the line.
#include "engine/placement/placement_plan.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/toy/placements.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using toy::arguments;
using toy::Setting;

using toy::kDevice;
using toy::kHost;
using toy::kStreamed;

PlanInput input_of(const Setting& setting, int world) {
  return PlanInput::of(toy::config_of(setting, world), arguments(setting).options, world);
}

PlacementProblem problem_of(const Setting& setting, int world = 1) {
  return placement_problem(toy::model(), input_of(setting, world),
                           PlacementHardware::of(setting.sim, {.in_place = 10e9}), setting.overlap);
}

/// Returns the bytes that the engine holds on the device where no shadow may take memory.
std::size_t held_on_device(Setting setting, int world,
                           const std::vector<StatePlacement>& placements) {
  setting.placements = placements;
  setting.overlap = Overlap::kOffload;
  return on_ranks(world,
                  [&](std::shared_ptr<Communicator> ranks) {
                    return Engine(arguments(setting, std::move(ranks))).resident_bytes().device;
                  })
      .front();
}

TEST(PlacementPlan, CountsTheDeviceMemoryThatARankAllocates) {
  for (const int world : {1, 2}) {
    for (const std::string type : {"fp32", "bf16"}) {
      for (const int stage : {0, 2, 3}) {
        for (const StateLayout layout : {StateLayout::kFp32, StateLayout::kInt8}) {
          Setting setting{.stage = stage,
                          .overlap = Overlap::kOffload,
                          .type = type,
                          .state_layout = layout,
                          .device = DeviceKind::kSim};
          SCOPED_TRACE(fmt::format("{} ranks {} stage {} {}", world, type, stage, name_of(layout)));
          const PlacementProblem problem = problem_of(setting, world);
          const double base = setting.sim.memory_bytes - problem.device_bytes;
          const std::vector<StatePlacement> host(5, kHost);
          const double more = world == 1 ? 0 : base - held_on_device(setting, world, host);
          EXPECT_EQ(more > 0, world > 1) << "their gradients come from the host";
          for (const std::vector<StatePlacement>& placements :
               {std::vector<StatePlacement>(5, kDevice),
                {kStreamed, kStreamed, kStreamed, kStreamed, kStreamed}}) {
            const bool streams = placements[0] == kStreamed;
            EXPECT_EQ(held_on_device(setting, world, placements),
                      base + problem.device_bytes_of(placements) - (streams ? more : 0));
          }
        }
      }
    }
  }
}

TEST(PlacementPlan, TheShadowsOfADeviceHaveAQuarterOfIt) {
  Setting setting{
      .type = "bf16", .device = DeviceKind::kSim, .placements = std::vector(5, kDevice)};
  const auto shadows_with = [&](double memory_bytes) {
    setting.sim.memory_bytes = memory_bytes;
    Engine engine(arguments(setting));
    EXPECT_LE(engine.resident_bytes().device, memory_bytes);
    const Batch batch = toy::batch(0);
    return engine.train_step(std::span(&batch, 1)).peak_device_bytes;
  };
  const std::int64_t all = shadows_with(16e9);
  setting.overlap = Overlap::kOffload;
  const std::int64_t without = shadows_with(16e9);
  EXPECT_GT(all, without);
  setting.overlap = Overlap::kFull;
  EXPECT_EQ(shadows_with(static_cast<double>(without)), without)
      << "no other tensor gives up room for them";
}

// State on the device passes through host memory when it is loaded or saved; other state does not.
TEST(PlacementPlan, LeavesRoomForTheTransferBuffersOfWhatMovesAlone) {
  PlanInput input = input_of({}, 1);
  input.shape.shadows = {};
  input.accelerator = true;
  const std::vector<StatePlacement> on_host(toy::model().units.size(), kHost);
  std::vector<StatePlacement> one_moves = on_host;
  one_moves.front() = kDevice;
  PlanInput here = input;
  here.shape.engine.placements = on_host;
  const std::int64_t needed = plan_memory(toy::model(), here).host_total();
  const auto bounded = [&](std::int64_t host_bytes) {
    PlacementProblem problem = problem_of({});
    problem.device_bytes = 1e12;
    bound_memory(problem, toy::model(), input, {.host = MemoryLimit{host_bytes, "for this test"}});
    return problem;
  };
  const PlacementProblem full = bounded(needed);
  EXPECT_TRUE(full.fits(on_host));
  EXPECT_FALSE(bounded(needed - 1).fits(on_host));
  ASSERT_GT(full.host_buffer_bytes, full.units.front().on_host)
      << "the transfer buffer of the largest unit is more than what the first one makes room for";
  EXPECT_FALSE(full.fits(one_moves));
  EXPECT_TRUE(bounded(needed + static_cast<std::int64_t>(full.host_buffer_bytes)).fits(one_moves));
}

TEST(PlacementPlan, FollowsTheUser) {
  const Setting setting{.type = "bf16", .device = DeviceKind::kSim};
  const Model model = toy::model();
  const PlacementProblem problem = problem_of(setting);
  const auto planned = [&](Placement placement, std::optional<double> ratio) {
    return plan_placement(model, problem, placement, ratio);
  };
  EXPECT_EQ(planned(Placement::kCpu, std::nullopt).placements, std::vector(5, kHost));
  EXPECT_EQ(planned(Placement::kCpu, std::nullopt).host_ratio, 1);
  EXPECT_EQ(planned(Placement::kGpu, std::nullopt).placements, std::vector(5, kDevice));
  EXPECT_EQ(planned(Placement::kGpu, std::nullopt).host_ratio, 0);
  EXPECT_EQ(planned(Placement::kStream, std::nullopt).placements, std::vector(5, kStreamed));
  const PlannedPlacement half = planned(Placement::kAuto, 0.5);
  EXPECT_FALSE(half.chosen);
  EXPECT_GE(half.host_ratio, 0.5 - 1e-9);
  EXPECT_LT(half.host_ratio, 0.9);
  EXPECT_THAT(half.text(model),
              AllOf(HasSubstr("on the device"), HasSubstr("on the host"), HasSubstr("predicted")));
  const PlannedPlacement chosen = planned(Placement::kAuto, std::nullopt);
  EXPECT_TRUE(chosen.chosen);
  EXPECT_EQ(chosen.placements[0], kDevice) << "the embedding has no window";
  EXPECT_LE(chosen.step_s, 1.005 * chosen.host_step_s);
}

TEST(PlacementPlan, KnowsTheStepsParts) {
  Setting setting{.stage = 2, .accumulation = 2, .type = "bf16", .device = DeviceKind::kSim};
  setting.sim.compute_flops_per_s = 1e9;
  const PlacementProblem problem = problem_of(setting);
  ASSERT_EQ(problem.units.size(), 5U);
  ASSERT_EQ(problem.segments.size(), 5U);
  EXPECT_EQ(problem.micro_steps, 2);
  const UnitLayout block = UnitLayout::make(2 * 24 * 24 * 2 + 48, 1);
  const auto elements = static_cast<double>(block.shard_elements);
  const PlacementUnit& unit = problem.units[1];
  EXPECT_EQ(unit.weights, 2 * elements);
  EXPECT_EQ(unit.accumulator, 4 * elements);  // two micro-steps are added in fp32
  EXPECT_EQ(unit.update, (24 + 4 + 2) * elements);
  EXPECT_EQ(unit.state_in, 12 * elements);
  EXPECT_TRUE(unit.is_replicated);
  EXPECT_EQ(problem.segments.back().units, (std::vector<std::size_t>{0, 4}));
  EXPECT_GT(problem.segments[1].backward_s, problem.segments[1].forward_s);
}

}  // namespace
}  // namespace tandem
