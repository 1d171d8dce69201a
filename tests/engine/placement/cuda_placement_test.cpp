// Optimizer state in a GPU's memory, and streamed through it: on the fake of CUDA's calls the bits
// of the CPU, in the order in which the device would work; and on a real one, where there is one.
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/device_choice.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/fake_run.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy_placements.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::FakeRun;
using ::testing::HasSubstr;
using testing::kPaces;
using testing::Pace;
using toy::arguments;
using toy::kAllPlacements;
using toy::kDevice;
using toy::kHost;
using toy::kStreamed;
using toy::Setting;
using toy::train_on_ranks;
using toy::TrainingRun;

class CudaPlacements : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(CudaPlacements, ChangeNoBit) {
  const auto& [type, world_size] = GetParam();
  Setting setting{.overlap = Overlap::kOff, .accumulation = type == "fp16" ? 2 : 1, .type = type};
  const TrainingRun expected = train_on_ranks(setting, world_size, 4);
  int turn = 0;
  toy::in_every_placement(
      setting, {Overlap::kOff, Overlap::kOffload, Overlap::kFull},
      [&](const Setting& there, const std::string& what) {
        const Pace& pace = kPaces[++turn % std::size(kPaces)];
        const FakeRun fake(pace);
        EXPECT_EQ(train_on_ranks(FakeRun::on_gpu(there, pace), world_size, 4), expected)
            << what << ", " << pace.name;
        fake.expect_orderly();
      });
}

INSTANTIATE_TEST_SUITE_P(Matrix, CudaPlacements,
                         ::testing::Combine(::testing::Values("fp32", "bf16", "fp16"),
                                            ::testing::Values(1, 2)),
                         toy::type_and_ranks);

TEST(CudaPlacements, ChangeNoBitInAnyLayout) {
  for (const StateLayout layout : {StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
    for (const std::string type : {"fp32", "bf16"}) {
      Setting setting{.type = type, .state_layout = layout};
      if (layout == StateLayout::kSplit && type == "fp32") {
        continue;  // there is nothing to split
      }
      const TrainingRun expected = toy::train(setting, 4);
      for (const auto& placements : kAllPlacements) {
        for (const Pace& pace : kPaces) {
          setting.placements = placements;
          setting.stage = layout == StateLayout::kSplit ? 3 : 2;
          const FakeRun fake(pace);
          EXPECT_EQ(toy::train(FakeRun::on_gpu(setting, pace), 4), expected)
              << name_of(layout) << " " << type << " places " << &placements - kAllPlacements
              << ", " << pace.name;
          fake.expect_orderly();
        }
      }
    }
  }
}

/// By the flag as by unit.
TEST(CudaPlacements, AreThoseOfThePlacementFlag) {
  Setting setting{.type = "bf16"};
  const TrainingRun expected = toy::train(setting, 3);
  for (const Placement placement : {Placement::kGpu, Placement::kStream, Placement::kCpu}) {
    setting.placement = placement;
    const FakeRun fake(kPaces[1]);
    EXPECT_EQ(toy::train(FakeRun::on_gpu(setting, kPaces[1]), 3), expected) << name_of(placement);
  }
}

/// Updated ahead on the device, and begun again there when the verdict differs.
TEST(CudaPlacements, AreSpeculatedOn) {
  for (const auto& placements : kAllPlacements) {
    for (const double clip : {0.0, 0.01}) {
      const FakeRun fake(kPaces[0]);
      Setting setting{.type = "bf16", .clip = clip, .placements = placements};
      Engine engine(arguments(FakeRun::on_gpu(setting, kPaces[0])));
      for (int step = 0; step < 4; ++step) {
        const Batch batch = toy::batch(step);
        const Verdict verdict = engine.train_step(std::span(&batch, 1)).verdict;
        EXPECT_TRUE(verdict.speculated);
        EXPECT_EQ(verdict.outcome, clip > 0 ? StepOutcome::kRollback : StepOutcome::kCommit);
      }
    }
  }
}

TEST(CudaPlacements, AStepTakesNothingThatMayWaitForTheDevice) {
  for (const auto& placements : kAllPlacements) {
    for (const int stage : {0, 3}) {
      const Setting setting =
          FakeRun::on_gpu({.stage = stage, .accumulation = 2, .placements = placements}, kPaces[0]);
      const FakeRun fake(kPaces[0]);
      Engine engine(arguments(setting));
      const int before = fake.cuda.heavy_calls();
      for (int step = 0; step < 4; ++step) {
        const std::vector<Batch> batches = {toy::batch(2 * step), toy::batch(2 * step + 1)};
        engine.train_step(batches);
      }
      EXPECT_EQ(fake.cuda.heavy_calls(), before) << "stage " << stage;
    }
  }
}

TEST(CudaPlacements, GradientsAndEvaluationAreThoseOfTheCpu) {
  struct Seen {
    std::vector<float> losses;
    std::vector<std::vector<float>> gradients;
    bool operator==(const Seen&) const = default;
  };
  const auto look = [](const Setting& setting) {
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
    return seen;
  };
  for (const std::string type : {"fp32", "bf16"}) {
    for (const int accumulation : {1, 2}) {
      Setting setting{.accumulation = accumulation, .type = type};
      const Seen expected = look(setting);
      for (const auto& placements : kAllPlacements) {
        setting.placements = placements;
        const FakeRun fake(kPaces[1]);
        EXPECT_TRUE(look(FakeRun::on_gpu(setting, kPaces[1])) == expected)
            << type << " accumulation " << accumulation << " places "
            << &placements - kAllPlacements;
        fake.expect_orderly();
      }
    }
  }
}

TEST(CudaPlacements, AreRefusedWhereTheyDoNotFit) {
  FakeRun fake(kPaces[0]);
  fake.cuda.memory_bytes = 60'000;
  Setting setting = FakeRun::on_gpu({.stage = 3}, kPaces[0]);
  setting.placement = Placement::kGpu;
  EXPECT_THAT(
      [&] { Engine engine(arguments(setting)); },
      ThrowsError(ExitCode::kRefused, AllOf(HasSubstr("of unit \""), HasSubstr("placement cpu"))));
}

// ---- on a real GPU: the host's updates and the device's have the same gradients, hence the same
// bits ----
TEST(CudaPlacements, RealUpdatesHaveTheBitsOfTheHosts) {
  if (const std::string why = why_no_cuda(DeviceFacts::of_machine()); !why.empty()) {
    GTEST_SKIP() << "needs --device cuda: " << why;
  }
  for (const StateLayout layout :
       {StateLayout::kFp32, StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
    for (const int accumulation : {1, 2}) {
      Setting setting{.accumulation = accumulation, .type = "bf16", .state_layout = layout};
      setting.device = DeviceKind::kCuda;
      const TrainingRun expected = toy::train(setting);
      for (const auto& placements : kAllPlacements) {
        for (const int stage : {0, 3}) {
          setting.placements = placements;
          setting.stage = stage;
          EXPECT_EQ(toy::train(setting), expected)
              << name_of(layout) << " accumulation " << accumulation << " places "
              << &placements - kAllPlacements << " stage " << stage;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
