// Optimizer state in the memory of a real GPU, and streamed through it, where there is one: the
// host's updates and the device's have the same gradients, hence the same bits.
#include <string>

#include <gtest/gtest.h>

#include "engine/tensors/device_choice.hpp"
#include "tests/support/toy/placements.hpp"

namespace tandem {
namespace {

using toy::kAllPlacements;
using toy::Setting;
using toy::TrainingRun;

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
              << name_of(layout) << " accumulation " << accumulation << " placements "
              << &placements - kAllPlacements << " stage " << stage;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem
