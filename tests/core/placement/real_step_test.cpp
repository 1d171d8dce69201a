// The step that the placement's model predicts, beside the step that ships: a Rank and its
// TrainStep in virtual time, with links, memory, pool and disk as fast as the model is told.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "engine/placement/placement_plan.hpp"
#include "engine/rank/rank.hpp"
#include "engine/step/timed_work.hpp"
#include "engine/step/train_step.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/sim/sim_lane.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sim/sim_world.hpp"
#include "runtime/util/build.hpp"
#include "runtime/util/random.hpp"

namespace tandem {
namespace {

constexpr int kSteps = 9;    // the first ones teach --speculate auto
constexpr int kCounted = 2;  // of these, the last ones
constexpr std::int64_t kChunk = 128 * 1024;
constexpr double kMostApart = 0.1;

/// The step's clipping is off, or has a limit that no norm reaches, or one that scales every
/// gradient.
enum class Clipping { kOff, kNever, kAlways };

struct Case {
  std::string name = {};
  Model model = {};
  std::size_t micro_steps = 1;
  int stage = 3;
  Clipping clipping = Clipping::kOff;
  EngineOptions options = {};
  PlacementHardware hardware = {};

  [[nodiscard]] Config config() const {
    return parse_config(
        fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": true}},
          "gradient_accumulation_steps": {}, "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3}}}},
          "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}}}})",
                    micro_steps, stage),
        "the case", 1);
  }
  [[nodiscard]] PlacementProblem problem() const {
    EngineOptions planned = options;
    // Clipping that always scales turns --speculate auto off.
    planned.speculate = clipping == Clipping::kAlways ? Speculate::kOff : options.speculate;
    return placement_problem(model, PlanInput::of(config(), planned, 1), hardware, options.overlap);
  }
};

/// A model with a segment for each unit.
Model model_of(const std::vector<std::int64_t>& elements, const std::vector<double>& forward_s,
               bool is_tied) {
  Model model;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::string name = fmt::format("unit {}", i);
    model.units.push_back({.name = name, .parameters = {{name, {elements[i]}}}});
    SegmentSpec segment{.name = name, .weights = {{i, 0}}};
    segment.cost.seconds = [forward = forward_s[i]](bool backward) {
      return (backward ? 3 : 1) * forward;
    };
    model.segments.push_back(std::move(segment));
  }
  if (is_tied) {
    model.segments.back().weights.push_back({0, 0});
  }
  model.source = [](const ParameterSpec&, std::int64_t begin, std::int64_t end, float* out) {
    std::fill(out, out + (end - begin), 0.5F);
  };
  return model;
}

EngineOptions options_of(std::vector<StatePlacement> placements) {
  EngineOptions options{.plans_run = false, .device = DeviceKind::kSim};
  options.placements = std::move(placements);
  options.speculate = Speculate::kOn;
  options.inflight_buckets = 64;
  options.nvme.path = ".";
  return options;
}

/// A visit that computes nothing; its gradients are zeros.
class NoGradients final : public TimedBatch {
 public:
  explicit NoGradients(const RankLayout& layout)
      : TimedBatch({.rows = 1, .length = 1}), layout_(layout) {}
  void backward(std::size_t, const VisitMemory& memory, double) override {
    for (const UnitUse& use : memory.uses) {
      if (use.first_gradient) {
        std::memset(memory.gradients[use.unit], 0,
                    layout_.slice_elements(use.unit) * bytes_of(DType::kBF16));
      }
    }
  }

 private:
  const RankLayout& layout_;  // of one rank, whose slices are whole units
};

/// One rank of the case in virtual time.
class RealStep {
 public:
  RealStep(const Case& one, const PlacementProblem& problem, SimWorld& world)
      : case_(one),
        loop_(world.loop(0)),
        scope_(loop_, Name("main")),
        config_(one.config()),
        options_(RankOptions::from(config_, one.options, CorePlan())),
        layout_(one.model, shape_on_device(options_.shape), options_.zero, 1, 0),
        update_workers_(world, 0,
                        {.threads = 1, .chunk_time = chunk_time(problem), .draws_times = false}),
        copy_workers_(world, 0, {.threads = 1, .chunk_time = Duration(1)}),
        update_pool_(loop_, {.threads = 1, .driver = &update_workers_}),
        copy_pool_(loop_, {.threads = 1, .driver = &copy_workers_}),
        accelerator_(std::make_unique<SimDevice>(
            loop_, SimDevice::Options{.memory_bytes = std::uint64_t{1} << 32,
                                      .memory_bytes_per_s = one.hardware.speeds.device_memory,
                                      .to_device_bytes_per_s = one.hardware.speeds.to_device,
                                      .to_host_bytes_per_s = one.hardware.speeds.to_host})),
        backend_(accelerator_.stage(std::make_unique<SelfBackend>(copy_pool_))),
        lane_(world, 0, {.time_of = [this](std::uint64_t n) { return time_of(n); }}),
        rank_(layout_, options_,
              {.loop = &loop_,
               .optimizer_pool = &update_pool_,
               .copy_pool = &copy_pool_,
               .accelerator = &accelerator_,
               .backend = backend_.get(),
               .lane_driver = &lane_,
               .nvme_files = [this, &world, rate = one.hardware.speeds.disk] {
                 return std::make_unique<SimFiles>(world, 0, disk_,
                                                   SimFiles::Faults{.bytes_per_s = rate});
               }}) {
    disk_.put_folder(".");
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
  /// All units have the same bytes per element, and whole chunks.
  static Duration chunk_time(const PlacementProblem& problem) {
    const PlacementUnit& unit = problem.units[0];
    const double of_chunk = unit.update * static_cast<double>(kChunk) / (unit.weights / 2);
    return Duration(static_cast<std::int64_t>(of_chunk / problem.speeds.host_update * 1e9));
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
    constexpr std::array kLimits = {0.0, 1.0, 1e-9};  // the norm is 0, and 1e-6 is added to it
    for (int number = 1; number <= kSteps; ++number) {
      const TrainStep::Update update{
          .groups = {self->layout_.shape.update},
          .applied_step = number,
          .gradient_clipping = kLimits[static_cast<std::size_t>(self->case_.clipping)]};
      step.begin(number, self->case_.micro_steps, update);
      for (std::size_t m = 0; m < self->case_.micro_steps; ++m) {
        co_await step.forward(std::make_shared<NoGradients>(self->layout_));
        co_await step.backward(1);
      }
      EXPECT_NE((co_await step.finish(update)).outcome, StepOutcome::kSkip);
      self->ends_.push_back(self->loop_.now());
    }
    co_await step.drain();
    co_await self->rank_.end(/*has_failed=*/false);
  }

  const Case& case_;
  EventLoop& loop_;
  Scope scope_;
  Config config_;
  RankOptions options_;
  RankLayout layout_;
  SimPool update_workers_;
  SimPool copy_workers_;
  CpuPool update_pool_;
  CpuPool copy_pool_;
  Accelerator accelerator_;
  std::unique_ptr<CollectiveBackend> backend_;
  SimLane lane_;
  SimDisk disk_;
  Rank rank_;
  std::vector<TimePoint> ends_;
};

struct Compared {
  double predicted_s;
  double simulated_s;
  [[nodiscard]] double apart() const { return predicted_s / simulated_s - 1; }
  [[nodiscard]] std::string text() const {
    return fmt::format("{:.2f} ms predicted, {:.2f} ms simulated, {:+.1f} %", 1e3 * predicted_s,
                       1e3 * simulated_s, 1e2 * apart());
  }
};

Compared compare(const Case& one, std::uint64_t seed) {
  const PlacementProblem problem = one.problem();
  SimWorld world({.seed = seed, .ranks = 1});
  RealStep step(one, problem, world);
  EXPECT_EQ(world.run([&] { return step.ended(); }), SimWorld::End::kDone) << one.name;
  return {predict_step_s(problem, one.options.placements), step.step_s()};
}

Case random_case(Random& random) {
  std::vector<std::int64_t> elements(4 + random.below(5));
  std::vector<double> forward_s;
  for (std::int64_t& count : elements) {
    count = static_cast<std::int64_t>(3 + random.below(9)) * kChunk;
    forward_s.push_back(static_cast<double>(count) * 1e-9 * (0.5 + random.uniform()));
  }
  const bool has_nvme = random.chance(0.4);
  std::vector<StatePlacement> placements;
  for (std::size_t unit = 0; unit < elements.size(); ++unit) {
    constexpr StatePlacement kPlaces[] = {StatePlacement::kHost, StatePlacement::kDevice,
                                          StatePlacement::kStreamed, StatePlacement::kNvme};
    placements.push_back(kPlaces[random.below(has_nvme ? 4 : 3)]);
  }
  Case one{
      .model = model_of(elements, forward_s, random.chance(0.5)),
      .micro_steps = 1 + random.below(2),
      .stage = random.chance(0.5) ? 3 : 1,
      .clipping = std::array{Clipping::kOff, Clipping::kNever, Clipping::kAlways}[random.below(3)],
      .options = options_of(std::move(placements))};
  one.options.overlap = std::array{Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull,
                                   Overlap::kFull}[random.below(5)];
  one.options.speculate = one.clipping == Clipping::kAlways ? Speculate::kAuto
                          : random.chance(0.7)              ? Speculate::kOn
                                                            : Speculate::kOff;
  one.options.gather_slots = std::array{0, 2, 4}[random.below(3)];
  const auto drawn = [&random](double least) { return least * std::exp2(4 * random.uniform()); };
  one.hardware.speeds = {.host_update = drawn(1e10),
                         .to_device = drawn(1e9),
                         .to_host = drawn(1e9),
                         .device_memory = drawn(4e10),
                         .disk = drawn(1e9)};
  one.hardware.memory_bytes = 4e9;
  return one;
}

// docs/placement.md names the bounds.
TEST(PlacementModel, PredictsTheStepThatShips) {
  constexpr std::uint64_t kCases = kAddressSanitizer || kThreadSanitizer ? 4 : 80;
  constexpr double kMostOnAverage = 0.03;
  double sum = 0;
  double most = 0;
  for (std::uint64_t seed = 0; seed < kCases; ++seed) {
    Random random = Random(seed).fork("case");
    const Compared compared = compare(random_case(random), seed);
    EXPECT_LE(std::abs(compared.apart()), kMostApart) << "seed " << seed << ": " << compared.text();
    sum += std::abs(compared.apart());
    most = std::max(most, std::abs(compared.apart()));
  }
  fmt::print("{} runs: {:.1f} % apart on average, {:.1f} % at most\n", kCases, 1e2 * sum / kCases,
             1e2 * most);
  if (kCases >= 60) {
    EXPECT_LE(sum / kCases, kMostOnAverage);
  }
}

/// Eight units of two million elements, with links of 5 GB/s, a pool of 20 GB/s and a disk of
/// 4 GB/s: every placement waits for something else.
Case table_case(std::string name, std::vector<StatePlacement> pattern) {
  constexpr std::size_t kUnits = 8;
  std::vector<StatePlacement> placements;
  for (std::size_t unit = 0; unit < kUnits; ++unit) {
    placements.push_back(pattern[unit % pattern.size()]);
  }
  Case one{.name = std::move(name),
           .model = model_of(std::vector<std::int64_t>(kUnits, 16 * kChunk),
                             std::vector<double>(kUnits, 1e-3), false),
           .options = options_of(std::move(placements))};
  one.hardware.speeds = {
      .host_update = 20e9, .to_device = 5e9, .to_host = 5e9, .device_memory = 200e9, .disk = 4e9};
  one.hardware.memory_bytes = 4e9;
  return one;
}

std::vector<Case> table() {
  constexpr StatePlacement kHost = StatePlacement::kHost;
  constexpr StatePlacement kNvme = StatePlacement::kNvme;
  std::vector<Case> cases = {
      table_case("all on the host", {kHost}),
      table_case("all on the device", {StatePlacement::kDevice}),
      table_case("all streamed", {StatePlacement::kStreamed}),
      table_case("all on NVMe", {kNvme}),
      table_case("host and device by turns", {StatePlacement::kDevice, kHost}),
      table_case("host and streamed by turns", {StatePlacement::kStreamed, kHost}),
      table_case("host and NVMe by turns", {kHost, kNvme}),
      table_case("all four by turns",
                 {StatePlacement::kDevice, kHost, StatePlacement::kStreamed, kNvme}),
  };
  for (const int slots : {1, 2, 4}) {
    cases.push_back(table_case(fmt::format("host, {} gather slots", slots), {kHost}));
    cases.back().options.gather_slots = slots;
  }
  for (const StatePlacement place : {kHost, kNvme}) {
    const char* const where = place == kHost ? "host" : "NVMe";
    cases.push_back(table_case(fmt::format("{}, clipping that never scales", where), {place}));
    cases.back().clipping = Clipping::kNever;
    cases.push_back(table_case(fmt::format("{}, clipping that always scales", where), {place}));
    cases.back().clipping = Clipping::kAlways;
    cases.back().options.speculate = Speculate::kAuto;
    cases.push_back(table_case(fmt::format("{}, 2 micro-steps", where), {place}));
    cases.back().micro_steps = 2;
  }
  for (const auto [overlap, name] : {std::pair(Overlap::kOff, "off"),
                                     {Overlap::kComm, "comm"},
                                     {Overlap::kOffload, "offload"}}) {
    cases.push_back(table_case(fmt::format("all four by turns, overlap {}", name),
                               {StatePlacement::kDevice, kHost, StatePlacement::kStreamed, kNvme}));
    cases.back().options.overlap = overlap;
  }
  return cases;
}

// docs/placement.md has what it prints.
TEST(PlacementModel, PredictsEachPlacement) {
  for (const Case& one : table()) {
    const Compared compared = compare(one, 1);
    EXPECT_LE(std::abs(compared.apart()), kMostApart) << one.name << ": " << compared.text();
    fmt::print("| {} | {:.2f} | {:.2f} | {:+.1f} % |\n", one.name, 1e3 * compared.predicted_s,
               1e3 * compared.simulated_s, 1e2 * compared.apart());
  }
}

}  // namespace
}  // namespace tandem
