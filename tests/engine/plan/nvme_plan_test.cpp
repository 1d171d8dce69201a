// The plan's placement and report for NVMe: state, weights, shadows; the share by a ratio, the
// overflow of host memory, and the refusal of a path that is no disk.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/placement/placement.hpp"
#include "engine/plan/nvme_disk.hpp"
#include "engine/plan/run_plan.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/toy/placements.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using test::TempDir;
using toy::first_two;
using toy::kHost;
using toy::kNvme;

const std::vector<StatePlacement> kAllOnNvme(5, kNvme);

/// `host_bytes` > 0: plans for another host with that memory, so that no figure depends on this
/// process; its pool is so fast that the disk alone decides.
RunPlan planned(const EngineOptions& options, const std::string& offload,
                std::int64_t host_bytes = 0, const Model& model = toy::model()) {
  const Config config = parse_config(
      R"({"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3,
          "stage3_param_persistence_threshold": 0, "offload_optimizer": {)" +
          offload + R"(}}})",
      "test", 1);
  RunLimits limits;
  if (host_bytes > 0) {
    limits.memory.host = MemoryLimit{host_bytes, "for this test"};
    limits.host_updates = HostUpdateSpeeds{.in_place = 4e10};
    limits.elsewhere = true;
  }
  Alone alone;
  return plan_run(model, config, options, {}, limits, alone);
}

TEST(NvmePlan, ARatioDecidesForOptimizersThatUpdateJointlyToo) {
  const TempDir folder;
  EngineOptions options{.compute_threads = 1, .optimizer_threads = 1};
  options.nvme = {.path = folder.path().string(), .overflow = true, .any_disk = true};
  options.offload_ratio = 0.5;
  Alone alone;
  std::vector<std::vector<StatePlacement>> placements;
  for (const char* optimizer : {"AdamW", "Lamb"}) {
    const Config config = parse_config(
        fmt::format(R"({{"train_micro_batch_size_per_gpu": 4, "optimizer": {{"type": "{}"}}}})",
                    optimizer),
        "test", 1);
    placements.push_back(plan_run(toy::model(), config, options, {}, {}, alone).options.placements);
  }
  EXPECT_EQ(std::ranges::count(placements[0], kNvme), 3) << "of five units, by their elements";
  EXPECT_EQ(placements[0], placements[1]);
}

TEST(NvmePlan, ThePlanHasItOnTheDiskAndAHotPrefixInMemory) {
  const TempDir folder;
  EngineOptions options{.compute_threads = 1, .optimizer_threads = 1};
  options.nvme.any_disk = true;
  const RunPlan in_memory = planned(options, R"("device": "cpu")");
  const std::string nvme =
      fmt::format(R"("device": "nvme", "nvme_path": "{}")", folder.path().string());
  const RunPlan all = planned(options, nvme);
  const std::int64_t moments = in_memory.memory().of(MemoryPurpose::kMoments, MemoryKind::kHost);
  EXPECT_GT(moments, 0);
  EXPECT_EQ(all.options.placements, kAllOnNvme);
  EXPECT_EQ(all.memory().of(MemoryPurpose::kMoments, MemoryKind::kNvme), moments);
  EXPECT_EQ(all.memory().of(MemoryPurpose::kMoments, MemoryKind::kHost), 0);
  EXPECT_THAT(all.placement, ::testing::HasSubstr("ahead of the verdict"));
  EXPECT_THAT(all.report.text(all.limits), ::testing::HasSubstr("nvme, all ranks"));
  EXPECT_THAT(all.nvme, ::testing::HasSubstr("GB/s each way"));
  // Room for the first two units' state, and a byte less than for the third's.
  const RunPlan none = planned(options, nvme, 1);
  EXPECT_TRUE(none.report.lacks.has_value());
  const std::vector<UnitCost>& units = all.memory().units;
  const std::int64_t room =
      none.memory().host_total() +
      static_cast<std::int64_t>(units[0].moments + units[1].moments + units[2].moments) - 1;
  const RunPlan some = planned(options, nvme, room);
  EXPECT_EQ(some.options.placements,
            (std::vector<StatePlacement>{kHost, kHost, kNvme, kNvme, kNvme}));
  EXPECT_FALSE(some.report.lacks.has_value());
  const RunPlan kept = planned(options, nvme + R"(, "ratio": 1.0)");
  EXPECT_THAT(kept.options.placements, ::testing::Each(kHost));
}

TEST(NvmePlan, ThePlanSaysWhichUpdatesTheDiskHasNoRoomFor) {
  const TempDir folder;
  EngineOptions options{.speculate = Speculate::kOn, .compute_threads = 1, .optimizer_threads = 1};
  options.nvme = {.path = folder.path(), .any_disk = true};
  options.placements = kAllOnNvme;
  const Config config = parse_config(
      R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}})", "test", 1);
  const auto with_free = [&](std::int64_t nvme_bytes) {
    RunLimits limits{.elsewhere = true};
    limits.memory.host = MemoryLimit{std::int64_t{1} << 40, "for this test"};
    limits.memory.nvme = MemoryLimit{nvme_bytes, "for this test"};
    Alone alone;
    return plan_run(toy::model(), config, options, {}, limits, alone);
  };
  const RunPlan all = with_free(std::int64_t{1} << 40);
  EXPECT_THAT(all.placement, ::testing::HasSubstr("; updates of what is there begin ahead"));
  const std::size_t units = all.options.units_ahead->size();
  ASSERT_GT(units, 1U);
  EXPECT_EQ(with_free(2 * all.memory().nvme_total()).placement, all.placement);
  const RunPlan some = with_free(2 * all.memory().nvme_total() - 2);
  EXPECT_THAT(some.placement,
              ::testing::HasSubstr(fmt::format("; updates of {} of {} units there begin ahead of "
                                               "the verdict: for all of them",
                                               some.options.units_ahead->size(), units)));
  EXPECT_LT(some.options.units_ahead->size(), units);
  EXPECT_FALSE(some.options.units_ahead->empty());
  EXPECT_EQ(some.options.speculate, Speculate::kOn);
}

/// Where the CPU computes a folder takes what memory does not hold, and the share that is to leave.
TEST(NvmePlan, OfAFolderARatioSaysTheLeastShare) {
  const TempDir folder;
  EngineOptions options{.speculate = Speculate::kOff, .compute_threads = 1, .optimizer_threads = 1};
  options.nvme = {.path = folder.path(), .overflow = true, .any_disk = true};
  const Model model = toy::model();
  const std::string on_cpu = R"("device": "cpu")";
  constexpr std::int64_t kPlenty = std::int64_t{1} << 40;
  EXPECT_THAT(planned(options, on_cpu, kPlenty).options.placements, ::testing::Each(kHost));
  const auto half = forced_placements(model, Placement::kNvme, 0.5);
  EXPECT_THAT(half, ::testing::AllOf(::testing::Contains(kNvme), ::testing::Contains(kHost)));
  const RunPlan by_config = planned(options, on_cpu + R"(, "ratio": 0.5)", kPlenty);
  EXPECT_EQ(by_config.options.placements, half);
  options.offload_ratio = 0.5;
  EXPECT_EQ(planned(options, on_cpu + R"(, "ratio": 1.0)", kPlenty).options.placements, half);
  EXPECT_EQ(planned(options, on_cpu, 1).options.placements, kAllOnNvme) << "no room for the rest";
  options.placement = Placement::kNvme;
  EXPECT_EQ(planned(options, on_cpu, 1).options.placements, half) << "asked for, and refused";
  // Without a plan there is no limit of memory.
  options.placement = Placement::kAuto;
  const Config config = parse_config(R"({"train_micro_batch_size_per_gpu": 4})", "test", 1);
  EXPECT_EQ(place_as_asked(model, config, options).placements, half);
  options.offload_ratio.reset();
  EXPECT_THAT(place_as_asked(model, config, options).placements, ::testing::IsEmpty());
}

TEST(NvmePlan, BesideAnAcceleratorTheSolversOverflowGoesThere) {
  const TempDir folder;
  Model model = toy::model();  // a description, with state beside which a stage is small
  for (UnitSpec& unit : model.units) {
    unit.parameters.front().shape = {1 << 24};
  }
  EngineOptions options{.device = DeviceKind::kSim,
                        .speculate = Speculate::kOff,
                        .compute_threads = 1,
                        .optimizer_threads = 1};
  options.sim.memory_bytes = 1e15;
  options.sim.memory_bytes_per_s = 1e3;  // so that the host updates
  options.nvme = {.path = folder.path(), .overflow = true, .any_disk = true};
  const auto plan_with = [&](const EngineOptions& how, std::int64_t host_bytes) {
    return planned(how, R"("device": "cpu")", host_bytes, model);
  };
  constexpr std::int64_t kPlenty = std::int64_t{1} << 40;
  const RunPlan roomy = plan_with(options, kPlenty);
  EXPECT_EQ(roomy.memory().nvme_total(), 0);
  using Placements = std::vector<StatePlacement>;
  const auto room_with = [&](const Placements& placements) {
    EngineOptions there = options;
    there.placements = placements;
    return plan_with(there, kPlenty).memory().host_total();
  };
  const Placements last = {kHost, kHost, kHost, kNvme, kNvme};
  const std::int64_t room = room_with(last);
  ASSERT_LT(room, roomy.memory().host_total());
  EXPECT_EQ(plan_with(options, room).options.placements, last);
  // Two blocks are a little more than a block and the last unit.
  const RunPlan more = plan_with(options, room - 1);
  EXPECT_EQ(more.options.placements, (Placements{kHost, kHost, kNvme, kNvme, kHost}));
  EXPECT_FALSE(more.report.lacks.has_value());
  EXPECT_THAT(more.placement, ::testing::AllOf(::testing::HasSubstr("ahead of the verdict"),
                                               ::testing::HasSubstr("ms predicted")));
  const Placements all(5, kNvme);
  EXPECT_EQ(plan_with(options, room_with(all)).options.placements, all);
  EXPECT_TRUE(plan_with(options, room_with(all) - 1).report.lacks.has_value());
  // A large unit stays where small ones are enough.
  model.units.back().parameters.front().shape = {1 << 26};
  const Placements blocks = {kHost, kHost, kNvme, kNvme, kHost};
  EXPECT_EQ(plan_with(options, room_with(blocks)).options.placements, blocks);
  options.nvme = {};
  EXPECT_TRUE(plan_with(options, room).report.lacks.has_value());
}

TEST(NvmePlan, ThePlanHasWeightsThereBehindThoseThatMemoryKeeps) {
  const TempDir folder;
  EngineOptions options{.compute_threads = 1, .optimizer_threads = 1};
  options.nvme.any_disk = true;
  const std::string there =
      fmt::format(R"("device": "nvme", "nvme_path": "{}"}}, "offload_param": {{"device": "nvme",
                      "max_in_cpu": {})",
                  folder.path().string(), first_two(1));
  const RunPlan plan = planned(options, there);
  const RunPlan kept = planned(
      options, fmt::format(R"("device": "nvme", "nvme_path": "{}")", folder.path().string()));
  const auto weights = [](const RunPlan& of, MemoryKind kind) {
    return of.memory().of(MemoryPurpose::kWeights, kind);
  };
  EXPECT_EQ(weights(kept, MemoryKind::kNvme), 0);
  EXPECT_GT(weights(plan, MemoryKind::kNvme), 0);
  EXPECT_EQ(weights(plan, MemoryKind::kNvme) + weights(plan, MemoryKind::kHost),
            weights(kept, MemoryKind::kHost));
  EXPECT_GT(plan.memory().of(MemoryPurpose::kGradients, MemoryKind::kNvme), 0);
  EXPECT_LT(plan.memory().of(MemoryPurpose::kGradients, MemoryKind::kHost),
            kept.memory().of(MemoryPurpose::kGradients, MemoryKind::kHost));
  EXPECT_THAT(plan.placement, ::testing::HasSubstr("of a rank's weights lie there"));
  // Beside backward: the weights once more, and the gradients.
  const auto in_file = [&](MemoryPurpose purpose) {
    return plan.memory().of(purpose, MemoryKind::kNvme);
  };
  const NvmeBytes& computing = plan.memory().nvme_computing;
  EXPECT_EQ(computing.read, weights(plan, MemoryKind::kNvme));
  EXPECT_EQ(computing.written, in_file(MemoryPurpose::kGradients));
  EXPECT_EQ(kept.memory().nvme_computing.read, 0);
  // Updates transfer their state, which includes the fp32 weights, and the weights for the next
  // forward.
  const NvmeBytes& updating = plan.memory().nvme_updating;
  const std::int64_t state = in_file(MemoryPurpose::kMaster) + in_file(MemoryPurpose::kMoments);
  EXPECT_EQ(updating.read,
            state + 2 * weights(plan, MemoryKind::kNvme) + in_file(MemoryPurpose::kGradients));
  EXPECT_EQ(updating.written, state + weights(plan, MemoryKind::kNvme));
  // State of the first units moves back to host memory where it has room; that of the others stays.
  const RunPlan roomy = planned(options, there, std::int64_t{1} << 40);
  EXPECT_EQ(roomy.options.placements,
            (std::vector<StatePlacement>{kHost, kHost, kNvme, kNvme, kNvme}));
}

TEST(NvmePlan, TheDisksTimeIsOfWhatGoesSideBySideAndOfTheRest) {
  const DiskRates rates{.each_way = 2, .read = 4, .write = 1};
  EXPECT_EQ(rates.seconds(10, 10), 5);
  EXPECT_EQ(rates.seconds(14, 10), 6);
  EXPECT_EQ(rates.seconds(10, 12), 7);
}

TEST(NvmePlan, WhatIsNoDiskIsRefused) {
  EngineOptions options{.compute_threads = 1, .optimizer_threads = 1};
  test::expect_error([&] { (void)planned(options, R"("device": "nvme")"); }, {"--nvme_path"});
  const TempDir folder;
  options.nvme.path = folder / "none";
  test::expect_error([&] { (void)planned(options, R"("device": "nvme")"); },
                     {"no folder", options.nvme.path});
  EXPECT_EQ(why_no_disk(0x01021994), "in memory (tmpfs)");
  EXPECT_EQ(why_no_disk(0x6969), "on the network (NFS)");
  EXPECT_EQ(why_no_disk(0xef53), "");  // ext4
}
}  // namespace
}  // namespace tandem
