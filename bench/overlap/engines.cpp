#include "bench/overlap/engines.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include <ATen/ops/zeros.h>

#include "engine/types/stopwatch.hpp"

namespace tandem::bench {
namespace {

constexpr int kWarmUpSteps = 3;
constexpr int kRoundsOfPace = 3;

Batch batch_of_nothing() { return {at::zeros({1, 1}, at::kLong), at::zeros({1, 1}, at::kLong)}; }

}  // namespace

std::unique_ptr<Engine> timed_engine(const StepShape& shape,
                                     const std::shared_ptr<const LayerTimes>& times,
                                     TimedEngineOptions wanted) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})";
  EngineOptions options{
      .device = wanted.device, .overlap = wanted.overlap, .forced_misses = wanted.forced_misses};
  if (wanted.placements.empty()) {
    options.placement = Placement::kCpu;  // it is the pool's work that a schedule hides
  }
  options.placements = std::move(wanted.placements);
  options.sim.memory_bytes = 1e12;
  options.sim.acts = false;
  options.sim.to_device_bytes_per_s = shape.link_bytes_per_s;
  options.sim.to_host_bytes_per_s = shape.link_bytes_per_s;
  options.compute_threads = 1;
  options.optimizer_threads = shape.optimizer_threads;
  auto engine = std::make_unique<Engine>(InitializeArgs{
      .model = timed_layers(static_cast<std::int64_t>(shape.layers),
                            static_cast<std::int64_t>(shape.weights_of_layer), times),
      .config = parse_config(config, "bench_overlap", 1),
      .options = options});
  const Batch batch = batch_of_nothing();
  for (int step = 0; step < kWarmUpSteps; ++step) {
    engine->train_step(std::span(&batch, 1));
  }
  return engine;
}

UpdateKernel layers_kernel(const StepShape& shape) {
  return {.weight = DType::kBF16, .gradient = DType::kBF16, .threads = shape.optimizer_threads};
}

HostUpdateSpeeds pool_speeds(const StepShape& shape) {
  const UpdateKernel kernel = layers_kernel(shape);
  UpdateKernel ahead = kernel;
  ahead.speculative = true;
  return {.in_place = measure_update_speed(kernel), .speculative = measure_update_speed(ahead)};
}

PlacementProblem timed_problem(const StepShape& shape,
                               const std::shared_ptr<const LayerTimes>& times,
                               const SimSpec& device, const HostUpdateSpeeds& pool, double room) {
  PlanInput input{
      .shape = {.type = DType::kBF16, .shadows = {.units = SIZE_MAX, .bytes = SIZE_MAX}}};
  input.zero.stage = 2;
  PlacementProblem problem =
      placement_problem(timed_layers(static_cast<std::int64_t>(shape.layers),
                                     static_cast<std::int64_t>(shape.weights_of_layer), times),
                        input, PlacementHardware::of(device, pool), Overlap::kFull);
  const PlacementUnit& layer = problem.units[0];
  problem.device_bytes = room * layer.on_device + problem.device_buffer_bytes +
                         static_cast<double>(shape.layers) * layer.when_streamed;
  return problem;
}

StepsOf run_steps(Engine& engine, int count) {
  const Batch batch = batch_of_nothing();
  engine.train_step(std::span(&batch, 1));
  StepsOf steps;
  const Stopwatch watch;
  for (int step = 0; step < count; ++step) {
    const StepResult result = engine.train_step(std::span(&batch, 1));
    steps.exposures.push_back(result.exposure);
    steps.missed += result.verdict.outcome == StepOutcome::kRollback ? 1 : 0;
    steps.speculated += result.verdict.speculated ? 1 : 0;
  }
  steps.seconds = watch.elapsed_s();
  engine.drain();
  return steps;
}

DevicePace pace_of(Engine& engine, const StepShape& shape, LayerTimes& times) {
  const Batch batch = batch_of_nothing();
  const auto least_s = [&](int matmuls) {
    times.forward_matmuls = matmuls;
    double least = 0;
    for (int round = 0; round < kRoundsOfPace; ++round) {
      const Stopwatch watch;
      (void)engine.evaluate(batch);
      const double seconds = watch.elapsed_s();
      least = round == 0 ? seconds : std::min(least, seconds);
    }
    return least;
  };
  DevicePace pace;
  pace.link_s = least_s(0);
  // Enough of them that they last longer than the gathers that run beside them.
  const double rough_s = std::max(least_s(8) - pace.link_s, 1e-3) / 8;
  const int many = 8 + static_cast<int>(2 * pace.link_s / rough_s);
  const double more_s = least_s(2 * many) - least_s(many);
  pace.matmul_s = (more_s > 0 ? more_s / many : rough_s) / static_cast<double>(shape.layers);
  times.forward_matmuls = 0;
  return pace;
}

}  // namespace tandem::bench
