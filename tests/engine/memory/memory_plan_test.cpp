// The memory plan: it counts what a rank really allocates, follows activations as the step holds
// them, and finds the smallest change that fits.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/memory/memory_check.hpp"
#include "engine/placement/placement.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using toy::Setting;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

std::int64_t in_all(const MemoryPlan& plan, MemoryPurpose purpose) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : plan.bytes[static_cast<std::size_t>(purpose)]) {
    sum += bytes;
  }
  return sum;
}

void expect_held(const ResidentBytes& held, const MemoryPlan& plan, const std::string& what) {
  const auto planned = [&](MemoryPurpose a, MemoryPurpose b) {
    return static_cast<std::size_t>(in_all(plan, a) + in_all(plan, b));
  };
  EXPECT_EQ(held.weights, planned(MemoryPurpose::kWeights, MemoryPurpose::kGatherSlots)) << what;
  EXPECT_EQ(held.gradients, planned(MemoryPurpose::kGradients, MemoryPurpose::kGradientSlots))
      << what;
  EXPECT_EQ(held.optimizer, planned(MemoryPurpose::kMaster, MemoryPurpose::kMoments)) << what;
  EXPECT_EQ(held.shadows, static_cast<std::size_t>(in_all(plan, MemoryPurpose::kShadows))) << what;
}

TEST(MemoryPlan, CountsWhatARankAllocates) {
  for (const int world : {1, 2, 3}) {
    for (const std::string type : {"fp32", "bf16", "fp16"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const int accumulation : {1, 2}) {
          const Setting setting{.stage = stage,
                                .overlap = accumulation == 2 ? Overlap::kFull : Overlap::kOffload,
                                .gather_slots = stage == 3 ? world : 0,
                                .accumulation = accumulation,
                                .type = type,
                                .persistent_elements = stage == 3 ? 100 : 0,
                                .inflight_buckets = stage};
          const InitializeArgs args = toy::arguments(setting);
          const PlanInput input =
              PlanInput::of(toy::config_of(setting, world), args.options, world);
          const MemoryPlan plan = plan_memory(toy::model(), input);
          const auto held = on_ranks(world, [&](std::shared_ptr<Communicator> ranks) {
            return Engine(toy::arguments(setting, std::move(ranks))).resident_bytes();
          });
          for (const ResidentBytes& of_rank : held) {
            expect_held(of_rank, plan,
                        fmt::format("{} ranks, {}, stage {}, accumulation {}", world, type, stage,
                                    accumulation));
          }
        }
      }
    }
  }
}

TEST(MemoryPlan, FrozenUnitsHaveNoState) {
  Model model = toy::model();
  for (ParameterSpec& parameter : model.units[1].parameters) {
    parameter.frozen = true;
  }
  const Setting setting{.type = "bf16"};
  InitializeArgs args = toy::arguments(setting);
  args.model = model;
  const PlanInput input = PlanInput::of(toy::config_of(setting), args.options, 1);
  const MemoryPlan plan = plan_memory(model, input);
  expect_held(Engine(std::move(args)).resident_bytes(), plan, "frozen");
  EXPECT_EQ(plan.units[1].moments, 0U);
  EXPECT_EQ(plan.units[1].master, 0U);
  EXPECT_GT(plan.units[2].moments, 0U);
}

/// A unit and a segment for each of `figures`.
Model model_with(const std::vector<ActivationBytes>& figures, std::int64_t elements = 512) {
  Model model;
  for (std::size_t s = 0; s < figures.size(); ++s) {
    const std::string name = std::to_string(s);
    model.units.push_back({name, {{name, {elements}}}});
    model.segments.push_back(
        {name, {{s, 0}}, nullptr, [at = figures[s]](const BatchShape&) { return at; }});
  }
  return model;
}

std::int64_t activations_of(const Model& model, bool checkpointing) {
  const MemoryPlan plan =
      plan_memory(model, {.shape = {.engine = {.activation_checkpointing = checkpointing}}});
  return plan.of(MemoryPurpose::kActivations, MemoryKind::kHost) +
         plan.of(MemoryPurpose::kLoss, MemoryKind::kHost);
}

TEST(MemoryPlan, FollowsActivationsToTheirHighestPoint) {
  const ActivationBytes first{.output = 10};
  const ActivationBytes block{.output = 10, .kept = 100, .forward = 20, .backward = 30};
  // All is kept: 10 + 110 + 110, and the second block's backward on top.
  EXPECT_EQ(activations_of(model_with({first, block, block}), false), 230 + 30);
  // Boundaries only: 10 + 10, then the last block; it is the last segment and keeps what it makes.
  EXPECT_EQ(activations_of(model_with({first, block, block}), true), 20 + 110 + 30);
  // A block that is not the last is computed again, with the gradient of its output beside it.
  const ActivationBytes head{.kept = 1, .forward = 5, .backward = 10, .loss = true};
  EXPECT_EQ(activations_of(model_with({first, block, block, head}), true), 20 + 110 + 30);
  const ActivationBytes large_head{.kept = 1000, .forward = 500, .backward = 10, .loss = true};
  const Model model = model_with({first, block, large_head});
  const MemoryPlan plan = plan_memory(model, {});
  EXPECT_EQ(plan.of(MemoryPurpose::kLoss, MemoryKind::kHost), 1500);
  EXPECT_EQ(plan.of(MemoryPurpose::kActivations, MemoryKind::kHost), 120);
}

TEST(MemoryPlan, LayoutsOfStateHaveTheirBytes) {
  const Model model = model_with({{}, {}}, 1 << 20);
  const auto state = [&](StateLayout layout, DType type) {
    const MemoryPlan plan =
        plan_memory(model, {.shape = {.engine = {.state_layout = layout}, .type = type}});
    return in_all(plan, MemoryPurpose::kMaster) + in_all(plan, MemoryPurpose::kMoments);
  };
  constexpr std::int64_t kElements = 2 << 20;
  EXPECT_EQ(state(StateLayout::kFp32, DType::kBF16), 12 * kElements);
  EXPECT_EQ(state(StateLayout::kFp32, DType::kF32), 8 * kElements);  // the weights are the master
  EXPECT_EQ(state(StateLayout::kSplit, DType::kBF16), 10 * kElements);
  EXPECT_EQ(state(StateLayout::kBf16, DType::kBF16), 6 * kElements);
  EXPECT_EQ(state(StateLayout::kInt8, DType::kBF16), 4 * kElements + kElements / 64);
  EXPECT_EQ(parse_enum<StateLayout>("fp8"), std::nullopt);
}

std::int64_t kept_on(const MemoryPlan& plan, std::initializer_list<MemoryPurpose> purposes,
                     std::initializer_list<MemoryKind> kinds) {
  std::int64_t sum = 0;
  for (const MemoryPurpose purpose : purposes) {
    for (const MemoryKind kind : kinds) {
      sum += plan.of(purpose, kind);
    }
  }
  return sum;
}

TEST(MemoryPlan, CountsWhatARankWithAnAcceleratorAllocates) {
  using enum MemoryPurpose;
  using enum MemoryKind;
  for (const int world : {1, 2}) {
    for (const std::string type : {"fp32", "bf16"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const Placement placement : {Placement::kCpu, Placement::kGpu, Placement::kStream}) {
          Setting setting{.stage = stage,
                          .overlap = Overlap::kFull,
                          .type = type,
                          .persistent_elements = stage == 3 ? 100 : 0,
                          .inflight_buckets = stage};
          setting.device = DeviceKind::kSim;
          const auto arguments = [&](std::shared_ptr<Communicator> ranks) {
            InitializeArgs args = toy::arguments(setting, std::move(ranks));
            args.options.placements = forced_placements(toy::model(), placement, std::nullopt);
            return args;
          };
          PlanInput input =
              PlanInput::of(toy::config_of(setting, world), arguments(nullptr).options, world);
          input.accelerator = true;
          input.shape.engine.placements = forced_placements(toy::model(), placement, std::nullopt);
          const MemoryPlan plan = plan_memory(toy::model(), input);
          const auto held = on_ranks(world, [&](std::shared_ptr<Communicator> ranks) {
            return Engine(arguments(std::move(ranks))).resident_bytes();
          });
          SCOPED_TRACE(fmt::format("{} ranks, {}, stage {}, {}", world, type, stage,
                                   static_cast<int>(placement)));
          for (const ResidentBytes& of_rank : held) {
            const auto host = [&](std::initializer_list<MemoryPurpose> purposes) {
              return static_cast<std::size_t>(kept_on(plan, purposes, {kPinned, kHost, kShared}));
            };
            EXPECT_EQ(of_rank.weights, host({kWeights}));
            EXPECT_EQ(of_rank.gradients, host({kGradients}));
            EXPECT_EQ(of_rank.optimizer, host({kMaster, kMoments}));
            EXPECT_EQ(of_rank.shadows, host({kShadows}));
            EXPECT_EQ(of_rank.staging, static_cast<std::size_t>(plan.of(kStaging, kPinned)));
            EXPECT_EQ(of_rank.device, static_cast<std::size_t>(kept_on(
                                          plan,
                                          {kWeights, kGatherSlots, kGradients, kGradientSlots,
                                           kMaster, kMoments, kShadows, kStaging},
                                          {kDevice})));
          }
        }
      }
    }
  }
}

TEST(MemoryPlan, AnAcceleratorHoldsWhatItComputesWith) {
  const Model model = model_with({{.output = 64}, {.output = 64}}, 1 << 20);
  PlanInput input{.shape = {.type = DType::kBF16}, .accelerator = true};
  input.zero.stage = 3;
  const MemoryPlan on_host = plan_memory(model, input);
  EXPECT_EQ(on_host.of(MemoryPurpose::kWeights, MemoryKind::kPinned), 2 * (2 << 20));
  EXPECT_EQ(on_host.of(MemoryPurpose::kWeights, MemoryKind::kDevice), 0) << "slots alone";
  EXPECT_EQ(on_host.of(MemoryPurpose::kMaster, MemoryKind::kHost), 4 * (2 << 20));
  EXPECT_EQ(on_host.of(MemoryPurpose::kMoments, MemoryKind::kHost), 8 * (2 << 20));
  EXPECT_GT(on_host.of(MemoryPurpose::kActivations, MemoryKind::kDevice), 0);
  EXPECT_EQ(on_host.of(MemoryPurpose::kStaging, MemoryKind::kHost), 0) << "nothing is copied here";
  input.shape.engine.placements = {StatePlacement::kDevice};
  const MemoryPlan placed = plan_memory(model, input);
  // Weights, master and moments, to be loaded and saved, and one of them as floats.
  EXPECT_EQ(placed.of(MemoryPurpose::kStaging, MemoryKind::kHost), (2 + 4 + 8 + 4) << 20);
  input.shape.engine.placements = {StatePlacement::kStreamed, StatePlacement::kStreamed};
  EXPECT_EQ(plan_memory(model, input).of(MemoryPurpose::kStaging, MemoryKind::kHost), (2 + 4)
                                                                                          << 20);
  input.shape.engine.placements = {StatePlacement::kDevice};
  EXPECT_EQ(placed.of(MemoryPurpose::kWeights, MemoryKind::kDevice), 2 << 20);
  EXPECT_EQ(placed.of(MemoryPurpose::kWeights, MemoryKind::kPinned), 2 << 20);
  EXPECT_EQ(placed.of(MemoryPurpose::kMoments, MemoryKind::kHost), 8 << 20);
  EXPECT_EQ(placed.of(MemoryPurpose::kMoments, MemoryKind::kDevice), 8 << 20);
  EXPECT_EQ(placed.of(MemoryPurpose::kMaster, MemoryKind::kDevice), 4 << 20);
  input.zero.stage = 2;  // a block there, and its shard here
  const MemoryPlan whole = plan_memory(model, input);
  EXPECT_EQ(whole.of(MemoryPurpose::kWeights, MemoryKind::kDevice), 2 * (2 << 20));
  EXPECT_EQ(whole.of(MemoryPurpose::kWeights, MemoryKind::kPinned), 2 << 20);
}

// A caching allocator holds more than what is alive.
TEST(MemoryPlan, AnAcceleratorsAllocatorHasFreeBlocks) {
  const auto beside = [](std::int64_t kept) {
    const MemoryPlan plan = plan_memory(model_with({{.output = 64}, {.output = 64, .kept = kept}}),
                                        {.shape = {.type = DType::kBF16}, .accelerator = true});
    return plan.of(MemoryPurpose::kAllocator, MemoryKind::kDevice);
  };
  EXPECT_GT(beside(0), 0) << "workspaces";
  EXPECT_EQ(beside(5 * kGiB) - beside(0), kGiB);
  EXPECT_EQ(beside(500 * kGiB), beside(50 * kGiB)) << "what else is free it gives back when asked";
}

// ---- whether it fits

/// Sixteen blocks of 64 Mi elements with large activations.
Model large_model() {
  std::vector<ActivationBytes> figures(
      16, {.output = kGiB / 16, .kept = kGiB, .forward = kGiB / 4, .backward = kGiB / 4});
  return model_with(figures, 64 << 20);
}

MemoryLimits host_of(double gib) {
  return {.host = MemoryLimit{static_cast<std::int64_t>(gib * kGiB), "here"}};
}

PlanInput large_run() {
  PlanInput input{.shape = {.type = DType::kBF16}, .rows = 8, .length = 2048};
  input.zero.stage = 3;
  return input;
}

TEST(MemoryCheck, ARunThatFitsIsLeftAsItIs) {
  const FitReport report = check_fit(large_model(), large_run(), host_of(100));
  EXPECT_FALSE(report.lacks);
  EXPECT_FALSE(report.change);
  EXPECT_NO_THROW(require_fit(report, host_of(100), false));
}

TEST(MemoryCheck, NamesTheSmallestChangeThatFits) {
  const Model model = large_model();
  const auto change_for = [&](double gib) {
    const FitReport report = check_fit(model, large_run(), host_of(gib));
    EXPECT_TRUE(report.lacks);
    return report.change ? report.change->text() : std::string("none");
  };
  const double needed = static_cast<double>(plan_memory(model, large_run()).host_total()) / kGiB;
  // A gather slot is an eighth of a GiB; activations are 16 GiB; fp32 state is 12.
  EXPECT_EQ(change_for(needed - 0.1), "--gather_slots 2");
  EXPECT_EQ(change_for(needed - 2), "--activation_checkpointing");
  EXPECT_THAT(change_for(needed - 16), HasSubstr("--activation_checkpointing, "));
  EXPECT_THAT(change_for(needed - 16), HasSubstr("optimizer_state split (the same bits)"));
  EXPECT_THAT(change_for(needed - 18.5), HasSubstr("optimizer_state bf16"));
  EXPECT_EQ(change_for(0.1), "none");
}

// State in files costs time, and more machines cost more: the advice names them where no other
// change fits.
TEST(MemoryCheck, NamesFilesAndMoreRanksWhereNothingElseFits) {
  const Model model = large_model();
  PlanInput run = large_run();
  run.rows = 1;
  run.shape.engine.activation_checkpointing = true;
  const auto report_of = [&](double gib, const ChangesAllowed& allowed = {}) {
    const FitReport report = check_fit(model, run, host_of(gib), allowed);
    EXPECT_TRUE(report.lacks);
    for (const auto* change : {&report.change, &report.ranks}) {
      if (*change) {
        const MemoryPlan changed = plan_memory(model, (*change)->input);
        EXPECT_FALSE(shortfall_of(changed, host_of(gib))) << (*change)->text();
      }
    }
    return report;
  };
  const FitReport state = report_of(10, {.state_formats = false});
  ASSERT_TRUE(state.change && state.ranks) << state.advice();
  EXPECT_THAT(state.change->text(), HasSubstr("--placement nvme --nvme_path FOLDER"));
  EXPECT_GT(state.change->plan.nvme_total(), 0);
  EXPECT_THAT(state.ranks->text(), HasSubstr("ranks on "));
  EXPECT_THAT(state.advice(), HasSubstr(" of a local disk); or "));
  const FitReport weights = report_of(5.5);
  ASSERT_TRUE(weights.change) << weights.advice();
  EXPECT_THAT(weights.change->text(), HasSubstr(R"("offload_param": {"device": "nvme")"));
  EXPECT_THAT(report_of(10, {.state_formats = false, .ratio_is_given = true}).change->text(),
              HasSubstr("--offload_ratio 0"));
  EXPECT_FALSE(report_of(10, {.state_formats = false, .nvme = false}).change);
  EXPECT_FALSE(report_of(10, {.state_formats = false, .ranks = false}).ranks);
}

TEST(MemoryCheck, AChangeThatIsAdvisedFits) {
  const Model model = large_model();
  for (double gib = 40; gib > 8; gib -= 1.7) {
    const FitReport report = check_fit(model, large_run(), host_of(gib));
    if (!report.change) {
      continue;
    }
    const MemoryPlan changed = plan_memory(model, report.change->input);
    EXPECT_FALSE(shortfall_of(changed, host_of(gib))) << report.change->text();
    EXPECT_EQ(changed.host_total(), report.change->plan.host_total()) << "of the slim copy";
  }
}

TEST(MemoryCheck, AdvisesNothingThatThisVersionLacks) {
  const double needed =
      static_cast<double>(plan_memory(large_model(), large_run()).host_total()) / kGiB;
  const FitReport report = check_fit(large_model(), large_run(), host_of(needed - 18.5),
                                     {.state_formats = false, .ranks = false, .nvme = false});
  EXPECT_FALSE(report.change);
  EXPECT_THAT(report.advice(), HasSubstr("smaller model"));
}

TEST(MemoryCheck, RefusesWithExitCodeThreeAndOneLine) {
  const MemoryLimits limits = host_of(20);
  const FitReport report = check_fit(large_model(), large_run(), limits);
  EXPECT_THAT([&] { require_fit(report, limits, false); },
              ThrowsError(ExitCode::kRefused,
                          ::testing::AllOf(HasSubstr("host memory: "), HasSubstr("20.0 GiB here"),
                                           HasSubstr("smallest change that fits: "))));
  EXPECT_THAT(report.text(limits), HasSubstr("activations"));
}

TEST(MemoryCheck, RanksOfAHostShareItsMemory) {
  PlanInput input = large_run();
  input.world_size = 4;
  input.ranks_per_host = 4;
  const MemoryPlan plan = plan_memory(large_model(), input);
  EXPECT_EQ(plan.host_total(),
            4 * (plan.total(MemoryKind::kHost) + plan.total(MemoryKind::kShared)));
  EXPECT_GT(plan.of(MemoryPurpose::kWeights, MemoryKind::kShared), 0);
}

TEST(MemoryCheck, ShadowsThatAreChosenTakeNobodysRoom) {
  const Model model = large_model();
  PlanInput input = large_run();
  const double needed = static_cast<double>(plan_memory(model, input).host_total()) / kGiB;
  input.shadows_chosen = true;
  const auto shadows_with = [&](double gib) {
    const FitReport report = check_fit(model, input, host_of(gib));
    EXPECT_FALSE(report.lacks) << gib;
    EXPECT_EQ(report.plan.of(MemoryPurpose::kShadows, MemoryKind::kHost),
              static_cast<std::int64_t>(report.plan.shadows.size()) * 12 * (64 << 20));
    return report.plan.shadows.size();
  };
  EXPECT_EQ(shadows_with(needed + 0.5), 0U);
  EXPECT_EQ(shadows_with(needed + 2), 2U);  // 0.75 GiB each
  EXPECT_EQ(shadows_with(1000), 15U) << "all but the last visit's";
  input.shadows_chosen = false;
  input.shape.shadows = {.units = 8, .bytes = SIZE_MAX};  // asked for: may be too many
  const FitReport report = check_fit(model, input, host_of(needed + 4));
  ASSERT_TRUE(report.change);
  EXPECT_EQ(report.change->text(), "--inflight_buckets 4");
}

TEST(MemoryCheck, ShadowsLeaveAReserveWhereThereIsMuch) {
  EXPECT_EQ(ShadowBudget::room_of(100, -3), 0);
  EXPECT_EQ(ShadowBudget::room_of(100, 5), 5);
  EXPECT_EQ(ShadowBudget::room_of(100, 30), 25);
  EXPECT_EQ(ShadowBudget::room_of(100, 50), 40) << "a third of a 4B model's updates had no shadow";
  EXPECT_EQ(ShadowBudget::room_of(100, 100), 90);
  // With recomputation the state is most of what a run takes, and the host's half is free.
  PlanInput input = large_run();
  input.shape.engine.activation_checkpointing = true;
  const Model model = large_model();
  const double needed = static_cast<double>(plan_memory(model, input).host_total()) / kGiB;
  input.shadows_chosen = true;
  const FitReport report = check_fit(model, input, host_of(2 * needed));
  const auto bytes =
      static_cast<double>(report.plan.of(MemoryPurpose::kShadows, MemoryKind::kHost));
  EXPECT_GE(bytes, std::min(15 * 0.75, 0.75 * needed) * kGiB);
  EXPECT_LE(static_cast<double>(report.plan.host_total()), 1.8 * needed * kGiB);
}

TEST(MemoryCheck, GatherSlotsThatAreChosenHaveTheRestOfTheDevice) {
  const Model model = large_model();
  PlanInput input = large_run();
  input.accelerator = true;
  const MemoryPlan few = plan_memory(model, input);
  const auto needed = static_cast<double>(few.total(MemoryKind::kDevice)) / kGiB;
  constexpr double kSlotGib = 0.125;  // 64 Mi elements of 2 bytes
  const auto slots_with = [&](double gib) {
    MemoryLimits limits = host_of(1000);
    limits.device = MemoryLimit{static_cast<std::int64_t>(gib * kGiB), "there"};
    PlanInput placed = input;
    placed.shape.engine.placements.assign(16, StatePlacement::kHost);
    const MemoryPlan plan = plan_and_place(model, placed, limits);
    EXPECT_LE(static_cast<double>(plan.total(MemoryKind::kDevice)),
              std::max(needed, 0.9 * gib) * kGiB);
    return plan.gather_slots;
  };
  EXPECT_EQ(slots_with(needed), few.gather_slots);
  EXPECT_EQ(slots_with((needed + 4.5 * kSlotGib) / 0.9), few.gather_slots + 4);
  EXPECT_EQ(slots_with(1000), 16U) << "all units stay gathered";
  input.shape.engine.gather_slots = 5;
  EXPECT_EQ(slots_with(1000), 5U) << "asked for";
}

// Beside the host's units, whose gradients come first and whose second copies have no room.
TEST(MemoryCheck, SecondCopiesInTheFileAreThoseOfThePlan) {
  const Model model = large_model();
  PlanInput input = large_run();
  input.shadows_chosen = true;
  input.shape.engine.placements.assign(16, StatePlacement::kNvme);
  std::fill_n(input.shape.engine.placements.begin() + 12, 4, StatePlacement::kHost);
  PlanInput bare = input;
  bare.shape.shadows = {};
  const MemoryPlan without = plan_memory(model, bare);
  MemoryLimits limits = host_of(static_cast<double>(without.host_total()) / kGiB + 0.5);
  limits.nvme = MemoryLimit{8 * without.nvme_total(), "there"};
  const MemoryPlan plan = check_fit(model, input, limits).plan;
  EXPECT_THAT(plan.shadows, ::testing::ElementsAre(11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_EQ(plan.of(MemoryPurpose::kShadows, MemoryKind::kHost), 0);

  PlanInput run = bare;  // as a rank has it: the plan's units, and no budget of its own
  run.shape.shadows = {.units = SIZE_MAX, .bytes = SIZE_MAX};
  run.shape.engine.units_ahead = plan.shadows;
  EXPECT_EQ(plan_memory(model, run).shadows, plan.shadows);
  EXPECT_EQ(plan_memory(model, run).host_total(), plan.host_total());

  // Half of the disk is left to others: shadows get the rest, first those whose gradients come
  // first.
  limits.nvme = MemoryLimit{3 * without.nvme_total(), "there"};
  const MemoryPlan some = check_fit(model, input, limits).plan;
  EXPECT_THAT(some.shadows, ::testing::ElementsAre(11, 10, 9, 8, 7, 6));
  EXPECT_LE(2 * some.nvme_total(), limits.nvme->bytes);
  limits.nvme->bytes = 2 * some.nvme_total() - 1;
  EXPECT_EQ(check_fit(model, input, limits).plan.shadows.size(), some.shadows.size() - 1);
  limits.nvme->bytes = 2 * without.nvme_total();
  EXPECT_TRUE(check_fit(model, input, limits).plan.shadows.empty());
  // Shadows in host memory take no room on the disk.
  limits.host->bytes *= 4;
  EXPECT_THAT(check_fit(model, input, limits).plan.shadows, ::testing::ElementsAre(15, 14, 13, 12));
}

TEST(MemoryCheck, StateGoesToTheAcceleratorWhereTheHostIsFull) {
  PlanInput input = large_run();
  input.accelerator = true;
  input.zero.offload_optimizer.device = "cpu";
  MemoryLimits limits = host_of(9);
  limits.device = MemoryLimit{60 * kGiB, "there"};
  const FitReport report = check_fit(large_model(), input, limits);
  EXPECT_FALSE(report.lacks) << report.text(limits);
  EXPECT_GT(report.plan.of(MemoryPurpose::kMoments, MemoryKind::kDevice), 0);
  EXPECT_GT(report.plan.of(MemoryPurpose::kMoments, MemoryKind::kHost), 0);
}

// Sums of absurd sizes stop at the greatest number instead of wrapping around to less than nothing.
TEST(MemoryPlan, IsNeverLessThanNothing) {
  Model model;
  for (int i = 0; i < 3; ++i) {
    model.units.push_back({"unit", {{"weight", {std::int64_t{1} << 30, std::int64_t{1} << 30}}}});
    model.segments.push_back({"segment", {{static_cast<std::size_t>(i), 0}}});
  }
  for (const std::int64_t ranks : {1, 1 << 16}) {
    const PlanInput input{.world_size = ranks, .ranks_per_host = ranks};
    const MemoryPlan plan = plan_memory(model, input);
    EXPECT_GT(plan.host_total(), kGiB);
    for (const auto& row : plan.bytes) {
      for (const std::int64_t bytes : row) {
        EXPECT_GE(bytes, 0);
      }
    }
  }
}

TEST(MemoryPlan, RefusesRowsThatNoRunHas) {
  const PlanInput input{.rows = std::int64_t{1} << 40, .length = std::int64_t{1} << 40};
  EXPECT_THAT([&] { (void)plan_memory(toy::model(), input); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("67108864 tokens together")));
}

}  // namespace
}  // namespace tandem
