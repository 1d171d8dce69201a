// Devices under the engine: another place for slots and blocks, the same bits; and the simulated
// one's own time and memory.
#include "engine/device/accelerator.hpp"

#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/metrics/flops.hpp"
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
using toy::Setting;
using toy::train_on_ranks;
using toy::TrainingRun;

class Devices : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, Devices, test::kWays, test::name_of_way);

/// The run of each stage and overlap at each pace has the bits of `expected`.
void expect_bits(Setting setting, Way way, const std::vector<Overlap>& overlaps, int world_size,
                 int steps) {
  const TrainingRun expected = train_on_ranks(setting, world_size, steps);
  setting.checkpointing = world_size == 1 && setting.accumulation > 1;
  for (const Pace& pace : paces_of(way)) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Overlap overlap : overlaps) {
        setting.stage = stage;
        setting.overlap = overlap;
        setting.forced_misses = world_size == 1 && stage % 2 == 0 ? 0.5 : 0;
        setting.persistent_elements = stage == 3 && overlap == Overlap::kComm ? 100 : 0;
        const DeviceRun run(way, pace);
        EXPECT_EQ(train_on_ranks(run.on_device(setting), world_size, steps), expected)
            << setting.type << " stage " << stage << " " << name_of(overlap) << " accumulation "
            << setting.accumulation << ", " << pace.name;
        run.expect_orderly();
      }
    }
  }
}

TEST_P(Devices, GiveTheBitsOfTheCpuOnOneRank) {
  for (const std::string type : {"fp32", "bf16", "fp16"}) {
    for (const int accumulation : {1, 3}) {
      expect_bits({.accumulation = accumulation, .type = type}, GetParam(),
                  {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull}, 1,
                  steps_on(GetParam()));
    }
  }
}

// Both on the one device.
TEST_P(Devices, GiveTheBitsOfTheCpuOnTwoRanks) {
  for (const std::string type : {"fp32", "bf16"}) {
    expect_bits({.accumulation = 2, .type = type}, GetParam(),
                {Overlap::kOff, Overlap::kOffload, Overlap::kFull}, 2, 4);
  }
}

TEST_P(Devices, RefuseWhatDoesNotFitByUnitAndSize) {
  const std::pair<int, const char*> cases[] = {{0, "the whole weights of unit \"embedding\""},
                                               {3, "gather slots, each as large as unit"}};
  for (const auto& [stage, part] : cases) {
    const DeviceRun run(GetParam(), test::kPaces[0], 3000);
    EXPECT_THAT(
        [&] { Engine engine(arguments(run.on_device({.stage = stage}))); },
        ThrowsError(ExitCode::kRefused, AllOf(HasSubstr(part), HasSubstr("3000 of 3000 are free"),
                                              HasSubstr("use stage 3"))))
        << "stage " << stage;
  }
}

/// The values that the caller of DeepSpeed's loop can read.
struct Seen {
  std::vector<float> losses;
  std::vector<std::vector<float>> gradients;
  std::vector<float> logits;
  bool operator==(const Seen&) const = default;
};

Seen deepspeeds_loop(const Setting& setting) {
  Engine engine(arguments(setting));
  Seen seen;
  for (int step = 0; step < 3; ++step) {
    for (int a = 0; a < setting.accumulation; ++a) {
      const Loss loss = engine.forward(toy::batch(step * 2 + a));
      seen.losses.push_back(loss.value);
      engine.backward(loss);
      if (a + 1 == setting.accumulation) {
        engine.for_each_gradient([&](const ParameterSpec&, std::span<const float> values) {
          seen.gradients.emplace_back(values.begin(), values.end());
        });
      }
      engine.step();
    }
    seen.losses.push_back(engine.evaluate(toy::batch(100)));
  }
  const at::Tensor logits = engine.logits(toy::batch(7)).to(at::kFloat).contiguous();
  seen.logits.assign(logits.data_ptr<float>(), logits.data_ptr<float>() + logits.numel());
  return seen;
}

TEST_P(Devices, GiveLossesGradientsAndLogitsOfTheCpuInDeepSpeedsLoop) {
  for (const std::string type : {"fp32", "bf16"}) {
    for (const int accumulation : {1, 2}) {
      Setting setting{.accumulation = accumulation, .type = type};
      const Seen expected = deepspeeds_loop(setting);
      for (const auto& placements : toy::default_and_all_placements()) {
        for (const Pace& pace : paces_of(GetParam())) {
          setting.placements = placements;
          const DeviceRun run(GetParam(), pace);
          EXPECT_TRUE(deepspeeds_loop(run.on_device(setting)) == expected)
              << type << " accumulation " << accumulation << " " << pace.name;
          run.expect_orderly();
        }
      }
    }
  }
}

TEST(Accelerator, HoldsSlotsAndBlocksAndTheHostTheRest) {
  const auto bytes_at = [](int stage, DeviceKind device) {
    Setting setting{.stage = stage, .gather_slots = 2};
    setting.device = device;
    Engine engine(arguments(setting));
    const Batch batch = toy::batch(0);
    const StepResult result = engine.train_step(std::span(&batch, 1));
    EXPECT_EQ(result.peak_device_bytes, static_cast<std::int64_t>(engine.resident_bytes().device));
    return engine.resident_bytes();
  };
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(stage);
    const ResidentBytes cpu = bytes_at(stage, DeviceKind::kCpu);
    const ResidentBytes sim = bytes_at(stage, DeviceKind::kSim);
    EXPECT_EQ(cpu.device, 0U);
    EXPECT_EQ(cpu.staging, 0U);
    EXPECT_GT(sim.staging, 0U);
    EXPECT_EQ(sim.optimizer, cpu.optimizer);
    EXPECT_EQ(sim.shadows, cpu.shadows);
    // On the CPU a whole block is the shard; on the device it is a copy of it. Slots move over.
    const std::size_t blocks = stage < 3 ? cpu.weights : 0;
    EXPECT_EQ(sim.device, cpu.weights + cpu.gradients + blocks - sim.weights - sim.gradients);
    EXPECT_LT(sim.gradients, cpu.gradients);
  }
}

TEST(Accelerator, ASegmentTakesAtLeastWhatTheDeviceWould) {
  Setting setting;
  setting.device = DeviceKind::kSim;
  InitializeArgs args = arguments(setting);
  double expected_s = 0;
  for (SegmentSpec& segment : args.model.segments) {
    segment.cost.seconds = [](bool is_backward) { return is_backward ? 5e-3 : 2e-3; };
    expected_s += 7e-3;
  }
  Engine engine(std::move(args));
  const Batch batch = toy::batch(0);
  const StepResult result = engine.train_step(std::span(&batch, 1));
  EXPECT_GE(result.exposure.compute_busy_s, expected_s - 1e-6);
  EXPECT_GE(result.step_time_s, expected_s - 1e-6);
  EXPECT_GT(result.exposure.to_device_busy_s, 0);
  EXPECT_GT(result.exposure.to_host_busy_s, 0);
}

TEST(SegmentTime, StartsWhenTheOneBeforeHasEndedAndTheInputsAreThere) {
  using namespace std::chrono_literals;
  const TimePoint now = Clock::real().now();
  DeviceTime device;
  device.free_since = now + 2ms;
  {
    const SegmentTime behind_another(1e-3, now, device);
  }
  EXPECT_EQ(device.free_since, now + 3ms);
  EXPECT_GE(Clock::real().now(), now + 3ms);
  {
    const SegmentTime inputs_later(1e-3, now + 5ms, device);
  }
  EXPECT_EQ(device.free_since, now + 6ms);
  EXPECT_GE(Clock::real().now(), now + 6ms);
  EXPECT_EQ(device.busy_ns.load(), 2'000'000);
  // A host that wakes up late does not make the device late.
  device.free_since = now - 1h;
  {
    const SegmentTime late(60, now - 2h, device);
  }
  EXPECT_EQ(device.free_since, now - 1h + 60s);
  // Work that takes longer than described does.
  device.free_since = now;
  const TimePoint began = Clock::real().now();
  {
    const SegmentTime slow(1e-9, now, device);
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_GE(device.free_since, now + 2ms);
  EXPECT_LE(device.free_since, now + (Clock::real().now() - began));
}

TEST(Accelerator, EstimatesFromTheDescribedSpeed) {
  // A toy batch is 4 rows of 12 tokens; the device is so slow that the estimate is what the step
  // takes.
  Setting setting;
  setting.device = DeviceKind::kSim;
  setting.sim.compute_flops_per_s = 50e6;
  Engine engine(arguments(setting));
  const Model& model = engine.model();
  double flops = 0;
  for (const SegmentSpec& segment : model.segments) {
    SegmentShape shape;
    for (const WeightRef& ref : segment.weights) {
      shape.weights += model.units[ref.unit].parameters[ref.parameter].numel();
    }
    flops += forward_flops(shape, 4, 12) + backward_flops(shape, 4, 12, false);
  }
  const Batch batch = toy::batch(0);
  const StepResult result = engine.train_step(std::span(&batch, 1));
  EXPECT_GE(result.exposure.compute_busy_s, flops / 50e6 - 1e-6);
}

TEST(SegmentFlops, AddUpToTheExamplesFigure) {
  constexpr std::int64_t kLayers = 6;
  constexpr std::int64_t kWidth = 64;
  const SegmentShape layer{.weights = 50'000, .attention_width = kWidth};
  for (const bool recomputes : {false, true}) {
    const double step = static_cast<double>(kLayers) *
                        (forward_flops(layer, 3, 128) + backward_flops(layer, 3, 128, recomputes));
    const FlopShape model{.parameters = kLayers * layer.weights,
                          .layers = kLayers,
                          .hidden = kWidth,
                          .activation_checkpointing = recomputes};
    EXPECT_NEAR(step / 1e12 / example_tflops(model, 3, 128, 1.0), 1, 1e-12);
  }
}

}  // namespace
}  // namespace tandem
