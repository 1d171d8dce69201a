// The step that the placement's model predicts, beside the step that ships: a Rank and its
// TrainStep in virtual time, with links, memory and updates as fast as the model is told.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "engine/placement/placement_plan.hpp"
#include "engine/rank/rank.hpp"
#include "engine/step/timed_work.hpp"
#include "engine/step/train_step.hpp"
#include "runtime/sim/sim_lane.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sim/sim_world.hpp"
#include "runtime/util/build.hpp"
#include "runtime/util/random.hpp"

namespace tandem {
namespace {

constexpr int kSteps = 6;
constexpr int kCounted = 2;  // of these, the last ones

/// Units of different sizes, one for each segment, and the first one in the last segment, too.
Model random_model(Random& random) {
  Model model;
  const std::size_t units = 4 + random.below(5);
  for (std::size_t i = 0; i < units; ++i) {
    const std::string name = "unit " + std::to_string(i);
    const auto elements = static_cast<std::int64_t>(400'000 + random.below(1'200'000));
    model.units.push_back({.name = name, .parameters = {{name, {elements}}}});
    const double forward_s = static_cast<double>(elements) * 1e-9 * (0.5 + random.uniform());
    SegmentSpec segment{.name = name, .weights = {{i, 0}}};
    segment.cost.seconds = [forward_s](bool backward) { return (backward ? 3 : 1) * forward_s; };
    model.segments.push_back(std::move(segment));
  }
  if (random.chance(0.5)) {
    model.segments.back().weights.push_back({0, 0});
  }
  model.source = [](const ParameterSpec&, std::int64_t begin, std::int64_t end, float* out) {
    std::fill(out, out + (end - begin), 0.5F);
  };
  return model;
}

struct Case {
  std::size_t micro_steps = 1;
  Model model;
  Config config;
  EngineOptions options;
  PlacementHardware hardware;
};

Case random_case(Random& random) {
  const std::size_t micro_steps = 1 + random.below(2);
  Case one{
      .micro_steps = micro_steps,
      .model = random_model(random),
      .config = parse_config(
          std::string(R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                  "gradient_accumulation_steps": )") +
              std::to_string(micro_steps) +
              R"(, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                  "zero_optimization": {"stage": )" +
              (random.chance(0.5) ? "3" : "1") + R"(, "stage3_param_persistence_threshold": 0}})",
          "the case", 1),
      .options = {.plans_run = false, .device = DeviceKind::kSim},
      .hardware = {}};
  one.options.overlap = std::array{Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull,
                                   Overlap::kFull}[random.below(5)];
  one.options.speculate = random.chance(0.7) ? Speculate::kOn : Speculate::kOff;
  one.options.inflight_buckets = 64;
  const auto drawn = [&random](double least) { return least * std::exp2(4 * random.uniform()); };
  one.hardware.speeds = {.host_update = drawn(1e10),
                         .to_device = drawn(1e9),
                         .to_host = drawn(1e9),
                         .device_memory = drawn(4e10)};
  one.hardware.memory_bytes = 4e9;
  constexpr StatePlacement kPlaces[] = {StatePlacement::kHost, StatePlacement::kDevice,
                                        StatePlacement::kStreamed};
  for (std::size_t unit = 0; unit < one.model.units.size(); ++unit) {
    one.options.placements.push_back(kPlaces[random.below(3)]);
  }
  return one;
}

double predicted_s(const Case& one) {
  PlanInput input = PlanInput::of(one.config, one.options, 1);
  const PlacementProblem problem =
      placement_problem(one.model, input, one.hardware, one.options.overlap);
  return predict_step_s(problem, one.options.placements);
}

/// One rank of the case in virtual time.
class RealStep {
 public:
  RealStep(const Case& one, SimWorld& world)
      : case_(one),
        loop_(world.loop(0)),
        scope_(loop_, Name("main")),
        options_(RankOptions::from(one.config, one.options, CorePlan())),
        layout_(one.model, shape_on_device(options_.shape), options_.zero, 1, 0),
        workers_(world, 0, {.threads = 1, .chunk_time = Duration(1)}),
        pool_(loop_, {.threads = 1, .driver = &workers_}),
        accelerator_(std::make_unique<SimDevice>(
            loop_, SimDevice::Options{.memory_bytes = std::uint64_t{1} << 32,
                                      .memory_bytes_per_s = one.hardware.speeds.device_memory,
                                      .to_device_bytes_per_s = one.hardware.speeds.to_device,
                                      .to_host_bytes_per_s = one.hardware.speeds.to_host})),
        backend_(accelerator_.stage(std::make_unique<SelfBackend>(pool_))),
        lane_(world, 0, {.time_of = [this](std::uint64_t n) { return time_of(n); }}),
        updates_(one.hardware.speeds.host_update),
        rank_(layout_, options_,
              {.loop = &loop_,
               .optimizer_pool = &pool_,
               .copy_pool = &pool_,
               .accelerator = &accelerator_,
               .backend = backend_.get(),
               .lane_driver = &lane_,
               .host_updates = &updates_}) {
    scope_.spawn("training", &RealStep::main, this);
  }

  [[nodiscard]] bool ended() const { return scope_.running() == 0 && rank_.scope().running() == 0; }
  /// The mean of the last steps.
  [[nodiscard]] double step_s() const {
    const Duration counted = ends_.back() - ends_[ends_.size() - 1 - kCounted];
    return std::chrono::duration<double>(counted).count() / kCounted;
  }

 private:
  static RankShape shape_on_device(RankShape shape) {
    shape.device_bytes = std::size_t{1} << 32;
    return shape;
  }
  /// The first function prepares the lane.
  Duration time_of(std::uint64_t n) const {
    const std::size_t segments = case_.model.segments.size();
    const std::size_t v = n == 0 ? 0 : (n - 1) % (2 * segments);
    const bool is_backward = v >= segments;
    const SegmentCost& cost = case_.model.segments[is_backward ? 2 * segments - 1 - v : v].cost;
    return n == 0 ? Duration(0)
                  : Duration(static_cast<std::int64_t>(cost.seconds(is_backward) * 1e9));
  }
  static Task<> main(RealStep* self) {
    co_await self->rank_.start();
    TrainStep step(self->rank_);
    for (int number = 1; number <= kSteps; ++number) {
      const TrainStep::Update update{.groups = {self->layout_.shape.update},
                                     .applied_step = number};
      step.begin(number, self->case_.micro_steps, update);
      for (std::size_t m = 0; m < self->case_.micro_steps; ++m) {
        co_await step.forward(std::make_shared<TimedBatch>(BatchExtents{.rows = 1, .length = 1}));
        co_await step.backward(1);
      }
      (void)co_await step.finish(update);
      self->ends_.push_back(self->loop_.now());
    }
    co_await step.drain();
    co_await self->rank_.end(/*has_failed=*/false);
  }

  const Case& case_;
  EventLoop& loop_;
  Scope scope_;
  RankOptions options_;
  RankLayout layout_;
  SimPool workers_;
  CpuPool pool_;
  Accelerator accelerator_;
  std::unique_ptr<CollectiveBackend> backend_;
  SimLane lane_;
  TimedUpdates updates_;
  Rank rank_;
  std::vector<TimePoint> ends_;
};

double simulated_s(const Case& one, std::uint64_t seed) {
  SimWorld world({.seed = seed, .ranks = 1});
  RealStep step(one, world);
  EXPECT_EQ(world.run([&] { return step.ended(); }), SimWorld::End::kDone);
  return step.step_s();
}

// docs/placement.md names the bounds.
TEST(PlacementModel, PredictsTheStepThatShips) {
  constexpr std::uint64_t kCases = kAddressSanitizer || kThreadSanitizer ? 4 : 60;
  constexpr double kMostOfOne = 0.15;
  constexpr double kMostOnAverage = 0.03;
  double sum = 0;
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    Random random = Random(seed).fork("case");
    const Case one = random_case(random);
    const double predicted = predicted_s(one);
    const double simulated = simulated_s(one, seed);
    const double apart = std::abs(predicted / simulated - 1);
    EXPECT_LE(apart, kMostOfOne) << "seed " << seed << ": " << predicted * 1e3 << " ms predicted, "
                                 << simulated * 1e3 << " ms simulated";
    sum += apart;
  }
  if (kCases >= 60) {
    EXPECT_LE(sum / kCases, kMostOnAverage);
  }
}

}  // namespace
}  // namespace tandem
