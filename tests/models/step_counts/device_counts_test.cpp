// The schedule of a step gives a device exact numbers of launches, waits of the host for events,
// and bytes of copies, beside the visits' own kernels. The Rank and the TrainStep that ship run
// real models' sizes in virtual time, with memory that is addresses alone, so a slice that became
// smaller or a copy that was added shows without a GPU. docs/device.md has the table.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "engine/rank/rank.hpp"
#include "engine/step/timed_work.hpp"
#include "engine/step/train_step.hpp"
#include "models/causal_lm.hpp"
#include "runtime/sim/sim_lane.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sim/sim_world.hpp"
#include "tests/models/step_counts/shapes.hpp"

namespace tandem {
namespace {

constexpr std::size_t kDeviceBytes = std::size_t{1} << 40;

/// Collectives of one rank over addresses without memory.
class NoCopies final : public CollectiveBackend {
 public:
  explicit NoCopies(CpuPool& pool) : memory_(pool) {}
  [[nodiscard]] std::uint32_t world() const noexcept override { return 1; }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return 0; }
  std::byte* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  Task<> all_gather(GatherArguments) override { co_return; }
  Task<GradientNorm> reduce_scatter_add(ReduceArguments) override { co_return GradientNorm(); }
  Task<GradientNorm> all_reduce_add(ReduceArguments) override { co_return GradientNorm(); }
  Task<> exchange(ExchangeArguments) override { co_return; }
  Task<> all_to_all(AllToAllArguments) override { co_return; }

 private:
  SelfBackend memory_;
};

/// One rank that trains a model whose state has these places, in virtual time.
class CountedRank {
 public:
  CountedRank(SimWorld& world, const Model& model, std::vector<StatePlacement> placements)
      : loop_(world.loop(0)),
        scope_(loop_, Name("main")),
        options_(options_of(std::move(placements))),
        layout_(model, options_.shape, options_.zero, 1, 0),
        workers_(world, 0, {}),
        pool_(loop_, {.threads = 1, .driver = &workers_}),
        accelerator_(std::make_unique<SimDevice>(
            loop_,
            SimDevice::Options{.memory_bytes = kDeviceBytes, .acts = false, .has_memory = false})),
        backend_(accelerator_.stage(std::make_unique<NoCopies>(pool_))),
        lane_(world, 0, {.time_of = [](std::uint64_t) { return std::chrono::milliseconds(2); }}),
        updates_(60e9),
        rank_(layout_, options_,
              {.loop = &loop_,
               .optimizer_pool = &pool_,
               .copy_pool = &pool_,
               .accelerator = &accelerator_,
               .backend = backend_.get(),
               .lane_driver = &lane_,
               .host_updates = &updates_,
               .has_memory = false}) {
    scope_.spawn("training", &CountedRank::main, this);
  }

  [[nodiscard]] bool ended() const { return scope_.running() == 0 && rank_.scope().running() == 0; }
  /// Returns the counts of the last step.
  [[nodiscard]] DeviceCounts counts() const { return last_ - before_; }

 private:
  static constexpr int kSteps = 4;

  static RankOptions options_of(std::vector<StatePlacement> placements) {
    EngineOptions engine{.plans_run = false, .device = DeviceKind::kSim};
    engine.placements = std::move(placements);
    engine.speculate = Speculate::kOn;
    const Config config = parse_config(
        R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
            "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3}})",
        "the test", 1);
    RankOptions options = RankOptions::from(config, engine, CorePlan());
    options.shape.device_bytes = kDeviceBytes;
    options.shape.shadows = {.units = SIZE_MAX, .bytes = SIZE_MAX};
    return options;
  }

  static Task<> main(CountedRank* self) {
    co_await self->rank_.start();
    TrainStep step(self->rank_);
    for (int number = 1; number <= kSteps; ++number) {
      self->before_ = std::exchange(self->last_, self->accelerator_.device().counts());
      const TrainStep::Update update{
          .groups = {self->layout_.shape.update}, .applied_step = number, .gradient_clipping = 1.0};
      step.begin(number, /*micro_steps=*/1, update);
      co_await step.forward(std::make_shared<TimedBatch>(BatchExtents{.rows = 1, .length = 1}));
      co_await step.backward(1);
      (void)co_await step.finish(update);
    }
    co_await step.drain();
    co_await self->rank_.end(/*has_failed=*/false);
  }

  EventLoop& loop_;
  Scope scope_;
  RankOptions options_;
  RankLayout layout_;
  SimPool workers_;
  CpuPool pool_;  // none of its threads ever works
  Accelerator accelerator_;
  std::unique_ptr<CollectiveBackend> backend_;
  SimLane lane_;
  TimedUpdates updates_;
  Rank rank_;
  DeviceCounts before_, last_;
};

DeviceCounts counts_of(const test::ModelSizes& sizes, StatePlacement place) {
  const Model model = make_causal_lm(parse_hf_config(sizes.config(), sizes.name));
  SimWorld world(
      {.seed = 1, .ranks = 1, .limit = std::chrono::hours(1), .max_operations = UINT64_MAX});
  CountedRank rank(world, model, std::vector(model.units.size(), place));
  EXPECT_EQ(world.run([&] { return rank.ended(); }), SimWorld::End::kDone);
  return rank.counts();
}

struct CountedPlacement {
  test::ModelSizes sizes;
  StatePlacement place;
  const char* name;
  DeviceCounts expected;
};

TEST(DeviceCounts, OfAStepAreKnown) {
  const CountedPlacement rows[] = {
      {test::kQwen3Small, StatePlacement::kHost, "host", {0, 355, 1978674176, 1192114176, 0}},
      {test::kQwen3Small,
       StatePlacement::kStreamed,
       "streamed",
       {627, 681, 7140016128, 7140016128, 1978672128}},
      {test::kQwen3Small, StatePlacement::kDevice, "device", {64, 118, 0, 0, 1978672128}},
      {test::kQwen3Large, StatePlacement::kHost, "host", {0, 4013, 29115970560, 16381489152, 0}},
      {test::kQwen3Large,
       StatePlacement::kStreamed,
       "streamed",
       {7886, 7957, 98288824320, 98288824320, 29115970560}},
      {test::kQwen3Large, StatePlacement::kDevice, "device", {292, 363, 0, 0, 29115970560}},
  };
  for (const CountedPlacement& row : rows) {
    const DeviceCounts counts = counts_of(row.sizes, row.place);
    const std::string line = fmt::format(
        "| {}, {} | {} | {} | {} | {} | {} |", row.sizes.name, row.name, counts.launches,
        counts.waits, counts.to_device_bytes, counts.to_host_bytes, counts.within_device_bytes);
    EXPECT_TRUE(test::page_has_row(line)) << "docs/device.md needs the row " << line;
    EXPECT_EQ(counts, row.expected) << row.sizes.name << " with its state on " << row.name;
  }
}

}  // namespace
}  // namespace tandem
