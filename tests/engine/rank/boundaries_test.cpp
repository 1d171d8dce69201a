// Activation offload: boundaries of segments that lie in host memory, or on NVMe, between forward
// and backward. The bits are those of the run that keeps all activations, for each share, stage,
// type and overlap; the memory is the plan's; and what the step waits for is said.
#include "engine/rank/boundaries.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/plan/run_plan.hpp"
#include "engine/types/boundary_share.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/counting_allocator.hpp"
#include "tests/support/faults/file_size_limit.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"
#include "tests/support/way.hpp"

namespace tandem {
namespace {

using test::FakeRun;
using test::Pace;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using toy::Setting;
using toy::TrainingRun;

constexpr std::int64_t kRows = 4;
constexpr std::int64_t kLength = 12;
constexpr std::size_t kBlocks = 6;

/// The toy with more blocks, and figures of its boundaries.
Model deep_model() {
  Model model;
  model.units.push_back({"embedding", {{"embedding.weight", {toy::kVocabulary, toy::kHidden}}}});
  model.segments.push_back({"embedding", {{0, 0}}, std::make_shared<toy::Embedding>()});
  for (std::size_t i = 0; i < kBlocks; ++i) {
    const std::size_t unit = model.units.size();
    const std::string name = fmt::format("block {}", i);
    model.units.push_back({name, toy::block_parameters(static_cast<std::int64_t>(i))});
    model.segments.push_back(
        {name, {{unit, 0}, {unit, 1}, {unit, 2}}, std::make_shared<toy::Block>()});
  }
  const std::size_t norm = model.units.size();
  model.units.push_back({"scale", {{"scale.weight", {toy::kHidden}}}});
  model.segments.push_back({"head", {{0, 0}, {norm, 0}}, std::make_shared<toy::TiedHead>()});
  for (std::size_t s = 0; s + 1 < model.segments.size(); ++s) {
    model.segments[s].activations = [](const BatchShape& batch) {
      return ActivationBytes{.output = batch.tokens() * toy::kHidden *
                                       static_cast<std::int64_t>(bytes_of(batch.type))};
    };
  }
  model.source = toy::fill;
  return model;
}

InitializeArgs arguments(const Setting& setting, std::optional<double> share,
                         std::shared_ptr<Communicator> ranks = nullptr) {
  InitializeArgs args = toy::arguments(setting, std::move(ranks));
  args.model = deep_model();
  args.options.activation_offload = share;
  return args;
}

TrainingRun steps_of(Engine& engine, const Setting& setting, int steps = 3) {
  TrainingRun run;
  for (int step = 0; step < steps; ++step) {
    std::vector<Batch> batches;
    batches.reserve(static_cast<std::size_t>(setting.accumulation));
    for (int a = 0; a < setting.accumulation; ++a) {
      const int number = (step * setting.accumulation + a) * engine.world_size() + engine.rank();
      // Rows get longer and shorter.
      batches.push_back(toy::batch(number, kRows, step == 1 ? kLength + 5 : kLength));
    }
    const StepResult result = engine.train_step(batches);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.verdict.norm.value);
  }
  run.losses.push_back(engine.evaluate(toy::batch(100)));
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    run.weights.emplace_back(values.begin(), values.end());
  });
  return run;
}

TrainingRun trained(const Setting& setting, std::optional<double> share, int world = 1) {
  return on_ranks(world,
                  [&](std::shared_ptr<Communicator> ranks) {
                    Engine engine(arguments(setting, share, std::move(ranks)));
                    return steps_of(engine, setting);
                  })
      .front();
}

TEST(Boundaries, TheFirstOnesLeaveAndTheLastTwoStay) {
  EXPECT_EQ(movable_boundaries(3), 0U);
  EXPECT_EQ(movable_boundaries(8), 5U);
  EXPECT_EQ(leaving_boundaries(0, 8), 0U);
  EXPECT_EQ(leaving_boundaries(0.01, 8), 1U);
  EXPECT_EQ(leaving_boundaries(1, 8), 5U);
  EXPECT_EQ(leaving_boundaries(1, 2), 0U);
  for (std::size_t leaving = 0; leaving <= 97; ++leaving) {
    EXPECT_EQ(leaving_boundaries(boundary_share(leaving, 100), 100), leaving);
  }
}

TEST(Boundaries, LeaveTheBitsAsTheyAreBesideASimulatedDevice) {
  for (const auto& [type, world] : {std::pair{"fp32", 1}, {"bf16", 1}, {"fp16", 1}, {"bf16", 2}}) {
    for (const int accumulation : {1, 2}) {
      Setting setting{.accumulation = accumulation, .type = type};
      const TrainingRun expected = trained(setting, std::nullopt, world);
      setting.checkpointing = true;
      setting.device = DeviceKind::kSim;
      for (const int stage : {0, 3}) {
        for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
          setting.stage = stage;
          setting.overlap = overlap;
          setting.forced_misses = stage == 3 ? 0.5 : 0;
          for (const double share : {0.4, 1.0}) {
            EXPECT_EQ(trained(setting, share, world), expected)
                << type << ", " << world << " ranks, stage " << stage << " " << name_of(overlap)
                << ", accumulation " << accumulation << ", share " << share;
          }
        }
      }
    }
  }
}

TEST(Boundaries, LeaveTheBitsAsTheyAreBesideAGpu) {
  for (const std::string type : {"fp32", "bf16"}) {
    Setting setting{.accumulation = 2, .type = type};
    const TrainingRun expected = trained(setting, std::nullopt);
    setting.checkpointing = true;
    for (const Pace& pace : test::kPaces) {
      for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
        for (const double share : {0.4, 1.0}) {
          FakeRun run(pace);
          run.cuda.aten_is_there = true;
          setting.overlap = overlap;
          EXPECT_EQ(trained(FakeRun::on_gpu(setting, pace), share), expected)
              << type << " " << name_of(overlap) << " share " << share << ", " << pace.name;
          run.expect_orderly();
        }
      }
    }
  }
}

TEST(Boundaries, LeaveTheBitsAsTheyAreOnNvme) {
  const TempDir folder;
  for (const std::string type : {"fp32", "bf16"}) {
    Setting setting{.accumulation = 2, .type = type};
    const TrainingRun expected = trained(setting, std::nullopt);
    setting.checkpointing = true;
    for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
      setting.overlap = overlap;
      for (const double share : {0.4, 1.0}) {
        InitializeArgs args = arguments(setting, share);
        args.options.nvme.path = folder.path();
        Engine engine(std::move(args));
        EXPECT_EQ(steps_of(engine, setting), expected)
            << type << " " << name_of(overlap) << " share " << share;
        // The buffers hold whole blocks of the file, each as long as the longest row's boundary.
        const std::size_t longest =
            kRows * (kLength + 5) * toy::kHidden * (type == "fp32" ? 4U : 2U);
        EXPECT_EQ(engine.resident_bytes().boundaries,
                  (share == 1 ? 3U : 2U) * ((longest + 4095) / 4096 * 4096));
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// Plans the memory of a run with micro-batches of the largest size.
MemoryPlan planned(const Setting& setting, double share) {
  const InitializeArgs args = arguments(setting, share);
  PlanInput input = PlanInput::of(toy::config_of(setting), args.options, 1);
  input.rows = kRows;
  input.length = kLength;
  return plan_memory(deep_model(), input);
}

TEST(Boundaries, TakeTheMemoryThatThePlanSays) {
  constexpr std::int64_t kBoundary = kRows * kLength * toy::kHidden * 4;
  std::int64_t before = INT64_MAX;
  for (const double share : {0.0, 0.4, 0.6, 1.0}) {
    SCOPED_TRACE(share);
    Setting setting{.checkpointing = true};
    setting.device = DeviceKind::kSim;
    const MemoryPlan plan = planned(setting, share);
    Engine engine(arguments(setting, share));
    const Batch batch = toy::batch(0, kRows, kLength);
    StepResult result;
    for (int step = 0; step < 2; ++step) {
      result = engine.train_step(std::span(&batch, 1));
    }
    EXPECT_EQ(result.peak_device_bytes, plan.simulated_bytes);
    EXPECT_EQ(static_cast<std::int64_t>(engine.resident_bytes().boundaries), plan.leaving_bytes);
    EXPECT_EQ(plan.leaving_bytes, static_cast<std::int64_t>(5 * share) * kBoundary);
    EXPECT_LT(plan.simulated_bytes, before);
    before = plan.simulated_bytes;
  }
  // Three in forward, the last of which is the first that stays.
  EXPECT_EQ(planned({.checkpointing = true, .device = DeviceKind::kSim}, 1).simulated_boundaries,
            3 * kBoundary);
}

/// Returns the peak of ATen's memory in a step, which does not include weights and slots.
std::int64_t held_by_aten(double share) {
  Setting setting{.checkpointing = true};
  setting.device = DeviceKind::kSim;
  test::CountingAllocator counting;  // outlives what it counts
  Engine engine(arguments(setting, share));
  const Batch batch = toy::batch(0, kRows, kLength);
  engine.train_step(std::span(&batch, 1));
  {
    const test::CountedTensors counted(counting);
    engine.train_step(std::span(&batch, 1));
  }
  const std::int64_t peak = counting.peak;
  engine.train_step(std::span(&batch, 1));  // the rest of the counted memory goes
  EXPECT_EQ(counting.live, 0);
  return peak;
}

TEST(Boundaries, FreeTheMemoryThatThePlanSays) {
  Setting setting{.checkpointing = true};
  setting.device = DeviceKind::kSim;
  const auto activations = [&](double share) {
    const MemoryPlan plan = planned(setting, share);
    return plan.of(MemoryPurpose::kActivations, MemoryKind::kHost) - plan.leaving_bytes;
  };
  for (const double share : {0.4, 1.0}) {
    EXPECT_EQ(held_by_aten(0) - held_by_aten(share), activations(0) - activations(share)) << share;
  }
}

TEST(Boundaries, AsManyLeaveAsTheDeviceHasNoRoomFor) {
  Setting setting{.checkpointing = true, .placement = Placement::kCpu};
  setting.device = DeviceKind::kSim;
  const auto plan_with = [&](std::optional<double> share, std::int64_t memory) {
    InitializeArgs args = arguments(setting, share);
    args.options.sim.memory_bytes = static_cast<double>(memory);
    Alone alone;
    return plan_run(args.model, toy::config_of(setting), args.options, {.length = kLength}, {},
                    alone);
  };
  const std::int64_t half = planned(setting, 0.6).simulated_bytes;
  const RunPlan plan = plan_with(std::nullopt, half);
  EXPECT_DOUBLE_EQ(plan.options.activation_offload.value_or(-1), 0.6);
  EXPECT_THAT(plan.placement_text(),
              AllOf(HasSubstr("\noffload   boundaries 1-3 of 7 in host memory"),
                    HasSubstr("the smallest that fits")));
  EXPECT_DOUBLE_EQ(
      plan_with(std::nullopt, half + (1 << 20)).options.activation_offload.value_or(-1), 0);
  EXPECT_DOUBLE_EQ(plan_with(1, half + (1 << 20)).options.activation_offload.value_or(-1), 1);

  // A share that is too small is refused before the start, with a change that fits.
  EXPECT_THAT([&] { plan_with(0.4, half).require_fit(); },
              ThrowsError(ExitCode::kRefused,
                          AllOf(HasSubstr("[memory] device memory: "),
                                HasSubstr("of the simulated device (--sim_spec memory=)"),
                                HasSubstr("smallest change that fits: "))));
  plan_with(0.6, half).require_fit();

  // A planned shape runs; a larger one is refused in the step that it is too large for.
  setting.sim.memory_bytes = static_cast<double>(half);
  const Batch batch = toy::batch(0, kRows, kLength);
  Engine(arguments(setting, 0.6)).train_step(std::span(&batch, 1));
  Engine too_large(arguments(setting, 0.4));
  EXPECT_THAT([&] { too_large.train_step(std::span(&batch, 1)); },
              ThrowsError(ExitCode::kRefused, AllOf(HasSubstr("segments' boundaries do not fit"),
                                                    HasSubstr("--activation_offload 1"))));
}

TEST(Boundaries, AFullDiskEndsTheStep) {
  const TempDir folder;
  InitializeArgs args = arguments({.checkpointing = true}, 1);
  args.options.nvme.path = folder.path();
  Engine engine(std::move(args));
  const Batch batch = toy::batch(0, kRows, kLength);
  const test::FileSizeLimit none(1);
  EXPECT_THAT([&] { engine.train_step(std::span(&batch, 1)); },
              ThrowsError(ExitCode::kRefused, HasSubstr("[nvme] cannot reserve")));
}

/// Seconds of a step in which the lane waited for boundaries; visits take 10 ms (backward 30).
double exposed_s(double copy_s) {
  constexpr double kBoundaryBytes = kRows * kLength * toy::kHidden * 4;
  Setting setting{.checkpointing = true};
  setting.device = DeviceKind::kSim;
  InitializeArgs args = arguments(setting, 1);
  args.options.sim.to_host_bytes_per_s = kBoundaryBytes / copy_s;
  args.options.sim.to_device_bytes_per_s = 1e12;
  for (SegmentSpec& segment : args.model.segments) {
    segment.cost.seconds = [](bool is_backward) { return is_backward ? 30e-3 : 10e-3; };
  }
  Engine engine(std::move(args));
  const Batch batch = toy::batch(0, kRows, kLength);
  engine.train_step(std::span(&batch, 1));
  return engine.train_step(std::span(&batch, 1)).exposure.activation_s;
}

TEST(Boundaries, AreWaitedForWhereTheLinkIsSlowerThanCompute) {
  EXPECT_LT(exposed_s(2e-3), 10e-3) << "in all five copies of 2 ms";
  // Forward computes for 80 ms; it ends after five copies in a row and the last visits.
  EXPECT_GT(exposed_s(60e-3), 150e-3);
}

TEST(Boundaries, AreAskedForInWaysThatARunCanHave) {
  const auto plan_of = [](EngineOptions options, const std::string& blocks = "") {
    options.compute_threads = 1;
    options.optimizer_threads = 1;
    Alone alone;
    return plan_run(deep_model(), toy::config_of({.blocks = blocks}), options, {.length = kLength},
                    {}, alone);
  };
  EXPECT_THAT([&] { (void)plan_of({.device = DeviceKind::kSim, .activation_offload = 0.5}); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("without activation_checkpointing")));
  EngineOptions checkpointed{.activation_checkpointing = true, .activation_offload = 1.0};
  EXPECT_THAT([&] { (void)plan_of(checkpointed); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("--nvme_path")));
  checkpointed.device = DeviceKind::kSim;
  EXPECT_EQ(plan_of(checkpointed).memory().leaving_boundaries, 5U);
  checkpointed.activation_offload = 1.5;
  EXPECT_THAT([&] { (void)plan_of(checkpointed); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("between 0 and 1")));
  // DeepSpeed's key, where the options leave it open.
  const std::string key = R"(, "activation_checkpointing": {"cpu_checkpointing": true})";
  checkpointed.activation_offload.reset();
  EXPECT_EQ(plan_of(checkpointed).memory().leaving_boundaries, 0U);
  EXPECT_EQ(plan_of(checkpointed, key).memory().leaving_boundaries, 5U);
  checkpointed.activation_offload = 0;
  EXPECT_EQ(plan_of(checkpointed, key).memory().leaving_boundaries, 0U);
  EXPECT_EQ(plan_of({.activation_checkpointing = true}, key).memory().leaving_boundaries, 0U)
      << "the CPU computes, and there is no folder";
}

/// A description whose boundaries are far larger than all else.
FitReport fit_of(std::optional<double> share, std::int64_t device_bytes) {
  PlanInput input{.rows = 1, .length = 1 << 16, .offload_chosen = !share, .accelerator = true};
  input.shape.engine.activation_checkpointing = true;
  input.shape.engine.activation_offload = share;
  return check_fit(deep_model(), input,
                   {.device = MemoryLimit{device_bytes, "of a test"},
                    .host = MemoryLimit{std::int64_t{1} << 40, "of the host"}});
}

TEST(Boundaries, ThePlanNamesTheSmallestChange) {
  constexpr std::int64_t kBoundary = (std::int64_t{1} << 16) * toy::kHidden * 4;
  const std::int64_t all = fit_of(0, std::int64_t{1} << 40).plan.total(MemoryKind::kDevice);
  const FitReport refused = fit_of(0, all - kBoundary);
  ASSERT_TRUE(refused.lacks);
  EXPECT_THAT(refused.advice(), HasSubstr("smallest change that fits: --activation_offload 1"));
  const FitReport chosen = fit_of(std::nullopt, all - kBoundary);
  EXPECT_FALSE(chosen.lacks);
  EXPECT_LE(chosen.plan.total(MemoryKind::kDevice), all - kBoundary);
  EXPECT_EQ(
      chosen.plan.of(MemoryPurpose::kActivations, MemoryKind::kDevice),
      fit_of(0, std::int64_t{1} << 40).plan.of(MemoryPurpose::kActivations, MemoryKind::kDevice) -
          kBoundary);
  EXPECT_EQ(chosen.plan.of(MemoryPurpose::kActivations, MemoryKind::kPinned),
            chosen.plan.leaving_bytes);
  EXPECT_EQ(fit_of(std::nullopt, all).plan.leaving_boundaries, 0U);
}

}  // namespace
}  // namespace tandem
