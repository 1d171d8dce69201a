// Optimizer state and weights on NVMe: the run's bits are those of the run in memory, for each
// layout, stage and number of ranks; checkpoints go from one to the other; a fault names the unit
// and harms no checkpoint.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "actors/optimizer/file_updates.hpp"
#include "engine/memory/memory_plan.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/toy/placements.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using test::TempDir;
using toy::first_two;
using toy::kNvme;
using toy::Setting;
using toy::TrainingRun;

const std::vector<StatePlacement> kAllOnNvme(5, kNvme);
const std::vector<StatePlacement> kSomeOnNvme = {toy::kHost, kNvme, toy::kHost, kNvme, kNvme};

InitializeArgs arguments(const Setting& setting, const TempDir& folder,
                         std::shared_ptr<Communicator> ranks = nullptr) {
  InitializeArgs args = toy::arguments(setting, std::move(ranks));
  args.options.nvme.path = folder.path();
  return args;
}

TrainingRun steps_of(Engine& engine, const Setting& setting, int first, int steps) {
  TrainingRun run;
  for (int step = first; step < first + steps; ++step) {
    std::vector<Batch> batches;
    batches.reserve(static_cast<std::size_t>(setting.accumulation));
    for (int a = 0; a < setting.accumulation; ++a) {
      batches.push_back(
          toy::batch((step * setting.accumulation + a) * engine.world_size() + engine.rank()));
    }
    run.losses.push_back(engine.train_step(batches).loss);
  }
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    run.weights.emplace_back(values.begin(), values.end());
  });
  return run;
}

TrainingRun trained(const Setting& setting, const TempDir& folder, int world) {
  return on_ranks(world,
                  [&](std::shared_ptr<Communicator> ranks) {
                    Engine engine(arguments(setting, folder, std::move(ranks)));
                    return steps_of(engine, setting, 0, 4);
                  })
      .front();
}

TEST(NvmeState, TrainsWithTheBitsOfMemory) {
  const TempDir folder;
  for (const auto& [layout, type] :
       {std::pair{StateLayout::kFp32, "fp32"}, std::pair{StateLayout::kFp32, "bf16"},
        std::pair{StateLayout::kSplit, "bf16"}, std::pair{StateLayout::kBf16, "bf16"},
        std::pair{StateLayout::kInt8, "bf16"}, std::pair{StateLayout::kInt8, "fp32"}}) {
    for (const auto& [world, stage] : {std::pair{1, 3}, std::pair{2, 1}, std::pair{2, 3}}) {
      Setting setting{.stage = stage, .type = type, .state_layout = layout};
      const TrainingRun in_memory = trained(setting, folder, world);
      setting.placements = world == 1 ? kAllOnNvme : kSomeOnNvme;
      EXPECT_EQ(trained(setting, folder, world), in_memory)
          << name_of(layout) << " " << type << " stage " << stage << ", " << world << " ranks";
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(NvmeState, UpdatesAheadOfTheVerdictHaveTheBitsOfMemory) {
  const TempDir folder;
  for (const double misses : {0.0, 0.5, 1.0}) {
    for (const int world : {1, 2}) {
      Setting setting{.type = "bf16", .clip = 1e9, .forced_misses = misses};
      const TrainingRun in_memory = trained(setting, folder, world);
      for (const auto& placements : {kAllOnNvme, kSomeOnNvme}) {
        setting.placements = placements;
        const MemoryPlan plan =
            plan_memory(toy::model(), PlanInput::of(toy::config_of(setting, world),
                                                    arguments(setting, folder).options, world));
        EXPECT_GT(plan.of(MemoryPurpose::kShadows, MemoryKind::kNvme), 0);
        EXPECT_EQ(trained(setting, folder, world), in_memory)
            << misses << " of the guesses miss, " << world << " ranks";
      }
    }
  }
}

Setting with_weights_there(Setting setting, std::int64_t kept) {
  setting.placement = Placement::kNvme;
  setting.weights_in_memory = kept;
  return setting;
}

TEST(NvmeState, WeightsAndGradientsThereHaveTheBitsOfMemory) {
  const TempDir folder;
  for (const auto& [layout, type] :
       {std::pair{StateLayout::kFp32, "fp32"}, std::pair{StateLayout::kFp32, "bf16"},
        std::pair{StateLayout::kSplit, "bf16"}, std::pair{StateLayout::kInt8, "bf16"},
        std::pair{StateLayout::kFp32, "fp16"}}) {
    for (const int world : {1, 2}) {
      for (const int accumulation : {1, 3}) {
        const Setting setting{.accumulation = accumulation, .type = type, .state_layout = layout};
        const TrainingRun in_memory = trained(setting, folder, world);
        for (const std::int64_t kept : {std::int64_t{0}, first_two(world)}) {
          EXPECT_EQ(trained(with_weights_there(setting, kept), folder, world), in_memory)
              << name_of(layout) << " " << type << ", " << world << " ranks, " << accumulation
              << " micro-steps, " << kept << " elements in memory";
        }
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(NvmeState, MemoryHoldsWhatThePlanLeavesThere) {
  const TempDir folder;
  for (const int world : {1, 2}) {
    for (const int accumulation : {1, 2}) {
      const Setting setting = with_weights_there(
          {.gather_slots = 2, .accumulation = accumulation, .type = "bf16"}, first_two(world));
      const InitializeArgs args = arguments(setting, folder);
      const MemoryPlan plan = plan_memory(
          toy::model(), PlanInput::of(toy::config_of(setting, world), args.options, world));
      const ResidentBytes held =
          on_ranks(world, [&](std::shared_ptr<Communicator> ranks) {
            return Engine(arguments(setting, folder, std::move(ranks))).resident_bytes();
          }).front();
      const auto in_memory = [&](MemoryPurpose purpose) {
        return static_cast<std::size_t>(plan.of(purpose, MemoryKind::kHost) +
                                        plan.of(purpose, MemoryKind::kShared));
      };
      EXPECT_EQ(held.weights,
                in_memory(MemoryPurpose::kWeights) + in_memory(MemoryPurpose::kGatherSlots));
      EXPECT_EQ(held.gradients,
                in_memory(MemoryPurpose::kGradients) + in_memory(MemoryPurpose::kGradientSlots));
      EXPECT_GT(plan.of(MemoryPurpose::kWeights, MemoryKind::kNvme), 0);
      EXPECT_GT(in_memory(MemoryPurpose::kWeights), 0U);
      const auto sharded = static_cast<std::uint32_t>(world);
      const Sharding sharding =
          Sharding::of(toy::model(), toy::config_of(setting, world).zero, sharded, 0);
      const RankSizes sizes =
          RankSizes::of(toy::model(), RankShape::of(toy::config_of(setting, world), args.options),
                        sharding, SlotClasses::of(toy::model(), sharding));
      EXPECT_EQ(held.staging, FileUpdates::kSlices * sizes.nvme_buffer_bytes +
                                  sizes.nvme_shard_bytes + sizes.nvme_accumulator_bytes);
      EXPECT_EQ(sizes.nvme_shard_bytes > 0, world > 1);
      EXPECT_EQ(sizes.nvme_accumulator_bytes > 0, world > 1 || accumulation > 1);
    }
  }
}

TEST(NvmeState, WeightsThereAreGatheredToAnAccelerator) {
  const TempDir folder;
  for (const int world : {1, 2}) {
    for (const int accumulation : {1, 2}) {
      Setting setting{.accumulation = accumulation, .type = "bf16"};
      const TrainingRun in_memory = trained(setting, folder, world);
      setting.device = DeviceKind::kSim;
      EXPECT_EQ(trained(with_weights_there(setting, 0), folder, world), in_memory)
          << world << " ranks, " << accumulation << " micro-steps";
    }
  }
}

TEST(NvmeState, SmallUnitsStayWholeInMemory) {
  const TempDir folder;
  const Setting setting{.type = "bf16", .persistent_elements = 100};
  const TrainingRun in_memory = trained(setting, folder, 2);
  EXPECT_EQ(trained(with_weights_there(setting, 0), folder, 2), in_memory);
}

TEST(NvmeState, FrozenWeightsLieThereToo) {
  const TempDir folder;
  const auto frozen_run = [&](const Setting& setting) {
    InitializeArgs args = arguments(setting, folder);
    for (ParameterSpec& parameter : args.model.units[2].parameters) {
      parameter.frozen = true;
    }
    Engine engine(std::move(args));
    return steps_of(engine, setting, 0, 4);
  };
  for (const char* type : {"fp32", "bf16"}) {
    const Setting setting{.gather_slots = 2, .type = type};
    EXPECT_EQ(frozen_run(with_weights_there(setting, 0)), frozen_run(setting)) << type;
  }
}

TEST(NvmeState, JointAndAcceleratedRunsToo) {
  const TempDir folder;
  for (const std::string& optimizer : {toy::kToyLamb, toy::kToyMuon}) {
    Setting setting{.type = "bf16", .optimizer = optimizer};
    const TrainingRun in_memory = trained(setting, folder, 2);
    setting.placement = Placement::kNvme;
    EXPECT_EQ(trained(setting, folder, 2), in_memory) << optimizer;
  }
  Setting setting{.type = "bf16"};
  const TrainingRun in_memory = trained(setting, folder, 1);
  setting.device = DeviceKind::kSim;
  setting.placements = {toy::kDevice, kNvme, toy::kStreamed, kNvme, toy::kHost};
  EXPECT_EQ(trained(setting, folder, 1), in_memory);
}

TEST(NvmeState, CheckpointsGoToMemoryAndBack) {
  const TempDir folder;
  const TempDir saves;
  constexpr int kLeg = 2;
  const Setting setting{.type = "bf16", .state_layout = StateLayout::kSplit};
  const TrainingRun straight = [&] {
    Engine engine(arguments(setting, folder));
    return steps_of(engine, setting, 0, 3 * kLeg);
  }();
  for (int leg = 0; leg < 3; ++leg) {
    Setting here = setting;
    here.placements = leg == 0 ? kAllOnNvme : std::vector<StatePlacement>();
    here = leg == 2 ? with_weights_there(here, 0) : here;
    Engine engine(arguments(here, folder));
    if (leg > 0) {
      (void)engine.load_checkpoint(saves.path());
    }
    const TrainingRun run = steps_of(engine, here, leg * kLeg, kLeg);
    for (int i = 0; i < kLeg; ++i) {
      ASSERT_EQ(run.losses.at(i), straight.losses.at(leg * kLeg + i)) << "leg " << leg;
    }
    EXPECT_TRUE(engine.save_checkpoint(saves.path()).saved());
    if (leg == 2) {
      EXPECT_EQ(run.weights, straight.weights);
    }
  }
}

/// Cuts the file of this process's state in that folder: it has no name, but a descriptor.
void cut_state_file(const TempDir& folder) {
  int cut = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string target = std::filesystem::read_symlink(entry.path(), none).string();
    if (target.starts_with(folder.path().string() + "/") && target.ends_with(" (deleted)")) {
      cut += ::truncate(entry.path().c_str(), 0) == 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(cut, 1);
}

TEST(NvmeState, AFaultNamesTheUnitAndHarmsNoCheckpoint) {
  const TempDir folder;
  const TempDir saves;
  Setting setting{.type = "bf16", .placements = kAllOnNvme};
  TrainingRun straight;
  {
    Engine engine(arguments(setting, folder));
    (void)steps_of(engine, setting, 0, 2);
    EXPECT_TRUE(engine.save_checkpoint(saves.path()).saved());
    cut_state_file(folder);
    test::expect_error([&] { (void)steps_of(engine, setting, 2, 1); },
                       {"[nvme] cannot read the optimizer state", "AdamW ", "ends at byte"},
                       ExitCode::kFailure);
  }
  setting.placements = {};
  Engine engine(arguments(setting, folder));
  (void)engine.load_checkpoint(saves.path());
  const TrainingRun resumed = steps_of(engine, setting, 2, 2);
  Engine whole(arguments(setting, folder));
  EXPECT_EQ(resumed.weights, steps_of(whole, setting, 0, 4).weights);
}

TEST(NvmeState, AFaultOfARankEndsTheOthersToo) {
  const Setting setting = with_weights_there({.gather_slots = 2, .type = "bf16"}, 0);
  const auto said = on_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) -> std::string {
    const TempDir folder;  // a disk of its own
    Engine engine(arguments(setting, folder, ranks));
    (void)steps_of(engine, setting, 0, 1);
    if (ranks->rank() == 1) {
      cut_state_file(folder);
    }
    try {
      (void)steps_of(engine, setting, 1, 1);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  });
  EXPECT_THAT(said[1], ::testing::HasSubstr("[nvme] cannot read the weights of"));
  EXPECT_THAT(said[0], ::testing::HasSubstr("rank 1"));
}

TEST(NvmeState, AFaultOfWeightsNamesTheirUnit) {
  const TempDir folder;
  const Setting setting = with_weights_there({.gather_slots = 2, .type = "bf16"}, 0);
  Engine engine(arguments(setting, folder));
  (void)steps_of(engine, setting, 0, 2);
  cut_state_file(folder);
  test::expect_error([&] { (void)steps_of(engine, setting, 2, 1); },
                     {"[nvme] cannot read the weights of \"", "ends at byte"}, ExitCode::kFailure);
}

}  // namespace
}  // namespace tandem
