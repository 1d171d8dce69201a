// The results of plan_run() in an embedder's program without a command line: a refusal with the
// plan's table, and the placement by the header's rules.
#include "engine/plan/run_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/initialize.hpp"
#include "engine/placement/placement_plan.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Property;

using Placements = std::vector<StatePlacement>;

/// An embedder's program: a model, a config, options.
InitializeArgs program(EngineOptions options, const std::string& offload = "cpu") {
  options.compute_threads = 1;
  options.optimizer_threads = 1;
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3,
      "stage3_param_persistence_threshold": 0, "offload_optimizer": {"device": ")" +
      offload + R"("}}})";
  return {.model = toy::model(),
          .config = parse_config(config, "test", 1),
          .options = std::move(options),
          .communicator = std::make_shared<Alone>()};
}

EngineOptions on_device(const SimSpec& sim) { return {.device = DeviceKind::kSim, .sim = sim}; }

RunPlan planned(const InitializeArgs& args, const RunLimits& limits = {}) {
  Alone alone;
  return plan_run(args.model, args.config.resolve(1), args.options, {}, limits, alone);
}

// A link so slow that whatever has room on the device belongs there, and one so fast that nothing
// is to be gained.
constexpr SimSpec kSlowLink = {
    .to_device_bytes_per_s = 1e6, .to_host_bytes_per_s = 1e6, .memory_bytes = 16e9};

TEST(RunPlan, ARunThatDoesNotFitIsRefusedWithTheTable) {
  InitializeArgs args = program({});
  args.plan = planned(args, {.memory = {.host = MemoryLimit{1 << 20, "for this test"}}});
  EXPECT_THAT([&] { (void)initialize(std::move(args)); },
              ::testing::Throws<DoesNotFit>(AllOf(
                  Property(&Error::code, ExitCode::kRefused),
                  Property(&Error::what,
                           AllOf(HasSubstr("[memory] host memory: "), HasSubstr("for this test"))),
                  Property(&DoesNotFit::table,
                           AllOf(HasSubstr("moments"), HasSubstr("host, all ranks"))))));
}

/// A parameter more than any machine has memory for; nothing is allocated before the refusal.
TEST(RunPlan, TheEngineAsksByItself) {
  InitializeArgs args = program({});
  args.model.units.front().parameters.front().shape.front() = std::int64_t{1} << 40;
  EXPECT_THROW((void)initialize(std::move(args)), DoesNotFit);
}

TEST(RunPlan, TheEngineTakesTheSolversPlacement) {
  InitializeArgs args = program(on_device(kSlowLink));
  const RunPlan plan = planned(args);
  EXPECT_THAT(plan.options.placements, ::testing::Contains(StatePlacement::kDevice));
  EXPECT_THAT(plan.placement, HasSubstr("on the device"));
  args.plan.reset();
  const Initialized run = initialize(std::move(args));
  InitializeArgs unplanned = program(on_device(kSlowLink));
  unplanned.options.plans_run = false;
  const Initialized on_host = initialize(std::move(unplanned));
  EXPECT_LT(run.engine.resident_bytes().optimizer, on_host.engine.resident_bytes().optimizer)
      << "without a plan all state stays on the host";
}

/// The reported memory of the device decides: without room there, all state is on the host.
TEST(RunPlan, TheSolverKnowsTheDevicesMemory) {
  SimSpec tiny = kSlowLink;
  tiny.memory_bytes = 1;
  EXPECT_THAT(planned(program(on_device(tiny))).options.placements, Each(StatePlacement::kHost));
}

TEST(RunPlan, EachRuleSpeaksInItsTurn) {
  const std::size_t units = toy::model().units.size();
  EXPECT_THAT(planned(program({})).options.placements, ::testing::IsEmpty());
  EXPECT_EQ(planned(program({})).placement, "all on the host: the CPU computes");

  EngineOptions given = on_device(kSlowLink);
  given.placements = Placements(units, StatePlacement::kStreamed);
  given.placement = Placement::kGpu;
  EXPECT_THAT(planned(program(given)).options.placements, Each(StatePlacement::kStreamed));

  EngineOptions asked = on_device(kSlowLink);
  asked.placement = Placement::kCpu;
  EXPECT_THAT(planned(program(asked)).options.placements, Each(StatePlacement::kHost));
  asked.placement = Placement::kStream;
  EXPECT_THAT(planned(program(asked)).options.placements, Each(StatePlacement::kStreamed));

  EngineOptions share = on_device(kSlowLink);
  share.offload_ratio = 1.0;
  EXPECT_THAT(planned(program(share)).options.placements, Each(StatePlacement::kHost));

  // A config that does not offload keeps all state on the device, where it has room.
  const RunPlan kept = planned(program(on_device({}), "none"));
  EXPECT_THAT(kept.options.placements, Each(StatePlacement::kDevice));
}

TEST(RunPlan, RefusesOptionsThatNoRunCanHave) {
  EngineOptions options;
  options.placement = Placement::kGpu;
  EXPECT_THROW((void)planned(program(options)), Error);
  test::expect_error([] { (void)planned(program({.offload_ratio = 0.5})); },
                     {"offload_ratio is 0.5", "the CPU computes", "nvme.path"});
}

/// Ranks measure different things, and decide alike.
TEST(RunPlan, RanksDecideAlike) {
  const std::vector<Placements> all = on_ranks(2, [&](std::shared_ptr<Communicator> ranks) {
    const InitializeArgs args = program(on_device(kSlowLink));
    Config config = args.config.resolve(1);
    config.world_size = 2;
    return plan_run(args.model, config, args.options, {}, {}, *ranks).options.placements;
  });
  EXPECT_EQ(all[0], all[1]);
}

}  // namespace
}  // namespace tandem
