// bench/placement/placement_bench.cpp — how near the solver's placement comes to the best one of a
// sweep.
//
//   bench_placement [Google Benchmark's flags]
//
// model/MODEL/adamX/freeY/rowsZ: by the step model alone. A Qwen3-shaped model on an accelerator
// like an H200 (500 TFLOPS, PCIe 5, 4 TB/s), X GB/s of the pool, device memory for Y of the
// optimizer's state, Z rows of 4096 tokens. `quality` is T(chosen) / T(best of all numbers of units
// per place, in three orders); time is the solver's. engine/adamX: T measured on a simulated
// accelerator in real time, for every number of units per place of a model of equal layers whose
// compute only lasts; X is t_Adam / t_GPU. `quality` as above, of medians; `predicted` is what the
// model says of the chosen placement over what it took.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/overlap/engines.hpp"
#include "bench/program.hpp"
#include "bench/torch_context.hpp"
#include "engine/engine.hpp"
#include "engine/types/stopwatch.hpp"
#include "trainer/program/reexec.hpp"

namespace tandem::bench {
namespace {

constexpr double kForEver = std::numeric_limits<double>::infinity();
constexpr StreamOrder kOrders[] = {StreamOrder::kSpread, StreamOrder::kFirst, StreamOrder::kLast};

/// Every number of units per place that fits; the same placement may come twice.
template <class Visit>
void sweep(const PlacementProblem& problem, std::span<const StreamOrder> orders, Visit visit) {
  const std::size_t units = problem.units.size();
  for (std::size_t d = 0; d <= units; ++d) {
    for (std::size_t s = 0; d + s <= units; ++s) {
      for (const StreamOrder order : orders) {
        if (const auto placements = placements_by_count(problem, d, s, order);
            problem.fits(placements)) {
          visit(placements);
        }
      }
    }
  }
}

// ---- by the model ----
struct Shape {
  const char* name;
  std::int64_t layers, hidden, block, vocabulary;
  bool tied;
};
constexpr Shape kShapes[] = {{"0.6b", 28, 1024, 15'730'000, 151'936, true},
                             {"1.7b", 28, 2048, 50'340'000, 151'936, true},
                             {"4b", 36, 2560, 100'900'000, 151'936, true},
                             {"8b", 36, 4096, 192'900'000, 151'936, false}};

Model shaped(const Shape& shape) {
  Model model;
  model.units.push_back({"embedding", {{"embedding", {shape.vocabulary, shape.hidden}}}});
  model.segments.push_back({.name = "embedding", .weights = {{0, 0}}, .cost = {.looks_up = true}});
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const std::size_t unit = model.units.size();
    const std::string name = fmt::format("block {}", i);
    model.units.push_back({name, {{name, {shape.block}}}});
    model.segments.push_back(
        {.name = name, .weights = {{unit, 0}}, .cost = {.attention_width = shape.hidden}});
  }
  if (!shape.tied) {
    model.units.push_back({"head", {{"head", {shape.vocabulary, shape.hidden}}}});
  }
  model.segments.push_back(
      {.name = "head", .weights = {{shape.tied ? 0 : model.units.size() - 1, 0}}});
  return model;
}

void run_model(benchmark::State& state, const Shape& shape, double adam, double free,
               std::int64_t rows) {
  const Model model = shaped(shape);
  PlanInput input{.shape = {.engine = {.activation_checkpointing = true},
                            .type = DType::kBF16,
                            .shadows = {.units = SIZE_MAX, .bytes = SIZE_MAX}},
                  .rows = rows,
                  .length = 4096};
  input.zero.stage = 2;
  const SimSpec spec = {.compute_flops_per_s = 500e12,
                        .to_device_bytes_per_s = 50e9,
                        .to_host_bytes_per_s = 50e9,
                        .memory_bytes_per_s = 4e12,
                        .memory_bytes = 1e15};
  PlacementProblem problem = placement_problem(
      model, input, PlacementHardware::of(spec, {.in_place = adam}), Overlap::kFull);
  problem.device_bytes = 0;
  for (const PlacementUnit& unit : problem.units) {
    problem.device_bytes += free * unit.on_device;
  }
  PlacementChoice choice;
  for (auto _ : state) {
    const Stopwatch watch;
    choice = choose_placements(problem);
    state.SetIterationTime(watch.elapsed_s());
  }
  double best_s = choice.step_s;
  sweep(problem, kOrders, [&](const std::vector<StatePlacement>& placements) {
    best_s = std::min(best_s, predict_step_s(problem, placements));
  });
  const auto share = [&](StatePlacement place) {
    return static_cast<double>(std::ranges::count(choice.placements, place));
  };
  state.counters["quality"] = choice.step_s / best_s;
  state.counters["chosen_ms"] = 1e3 * choice.step_s;
  state.counters["host_ms"] = 1e3 * choice.host_step_s;
  state.counters["on_device"] = share(StatePlacement::kDevice);
  state.counters["streamed"] = share(StatePlacement::kStreamed);
  state.counters["predictions"] = static_cast<double>(choice.predictions);
}

// ---- on the simulated accelerator ----
constexpr StepShape kShape = {.layers = 6, .weights_of_layer = std::size_t{3} << 20};
constexpr std::size_t kRoom = 2;  // layers on the device
constexpr int kPasses = 3;        // over the sweep
constexpr int kStepsOfPass = 5;
// Copies and updates on the device take no core, as on hardware.
constexpr SimSpec kAccelerator = {.to_device_bytes_per_s = 20e9,
                                  .to_host_bytes_per_s = 20e9,
                                  .memory_bytes_per_s = 1e12,
                                  .memory_bytes = 1e12,
                                  .acts = false};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Seconds of some steps with these places.
std::vector<double> measured_steps(const std::shared_ptr<LayerTimes>& times,
                                   const std::vector<StatePlacement>& placements) {
  EngineOptions options{.device = DeviceKind::kSim, .sim = kAccelerator, .placements = placements};
  options.compute_threads = 1;
  options.optimizer_threads = 1;
  Engine engine({.model = timed_layers(kShape.layers, kShape.weights_of_layer, times),
                 .config = parse_config(
                     R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
                         "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                         "zero_optimization": {"stage": 2,
                         "offload_optimizer": {"device": "cpu"}}})",
                     "bench_placement", 1),
                 .options = options});
  const Batch batch{at::zeros({1, 1}, at::kLong), at::zeros({1, 1}, at::kLong)};
  for (int step = 0; step < 2; ++step) {
    engine.train_step(std::span(&batch, 1));
  }
  std::vector<double> seconds;
  for (int step = 0; step < kStepsOfPass; ++step) {
    const Stopwatch watch;
    engine.train_step(std::span(&batch, 1));
    seconds.push_back(watch.elapsed_s());
  }
  engine.drain();
  return seconds;
}

void run_engine(benchmark::State& state, double ratio) {
  const auto times = std::make_shared<LayerTimes>();
  for (auto _ : state) {
    const HostUpdateSpeeds pool = pool_speeds(kShape);
    const double layer_adam_s = update_bytes_per_element(layers_kernel(kShape)) *
                                static_cast<double>(kShape.weights_of_layer) / pool.in_place;
    times->forward_s = kForwardShare * layer_adam_s / ratio;
    times->backward_s = (1 - kForwardShare) * layer_adam_s / ratio;
    const PlacementProblem problem = timed_problem(kShape, times, kAccelerator, pool, kRoom);
    const PlacementChoice choice = choose_placements(problem);
    std::map<std::vector<StatePlacement>, std::vector<double>> seconds;
    seconds[choice.placements] = {};
    sweep(problem, std::span(kOrders).first(1),
          [&](const std::vector<StatePlacement>& placements) { seconds[placements] = {}; });
    for (int pass = 0; pass < kPasses; ++pass) {
      for (auto& [placements, steps] : seconds) {
        const std::vector<double> more = measured_steps(times, placements);
        steps.insert(steps.end(), more.begin(), more.end());
      }
    }
    double best_s = kForEver;
    for (const auto& [placements, steps] : seconds) {
      best_s = std::min(best_s, median(steps));
    }
    const double chosen_s = median(seconds[choice.placements]);
    state.SetIterationTime(chosen_s);
    state.counters["quality"] = chosen_s / best_s;
    state.counters["predicted"] = choice.step_s / chosen_s;
    state.counters["host_ms"] =
        1e3 * median(seconds[std::vector<StatePlacement>(kShape.layers, StatePlacement::kHost)]);
    state.counters["on_device"] =
        static_cast<double>(std::ranges::count(choice.placements, StatePlacement::kDevice));
    state.counters["streamed"] =
        static_cast<double>(std::ranges::count(choice.placements, StatePlacement::kStreamed));
    state.counters["placements"] = static_cast<double>(seconds.size());
  }
}

template <class Function>
void add(const std::string& name, Function function) {
  benchmark::RegisterBenchmark(name.c_str(), function)
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime()
      ->Iterations(1);
}

void register_all() {
  for (const Shape& shape : kShapes) {
    for (const double adam : {100e9, 200e9}) {
      for (const double free : {0.1, 0.4, 1.0}) {
        for (const std::int64_t rows : {1, 4}) {
          add(fmt::format("model/{}/adam{}/free{}/rows{}", shape.name, adam / 1e9, free, rows),
              [=](benchmark::State& state) { run_model(state, shape, adam, free, rows); });
        }
      }
    }
  }
  for (const double ratio : {0.5, 1.0, 1.5}) {
    add(fmt::format("engine/adam{}", ratio),
        [=](benchmark::State& state) { run_engine(state, ratio); });
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  tandem::reexec_with_tuned_env();
  Suite suite(argc, argv, "plans of the placement solver beside the best of all");
  suite.begin();
  add_torch_context();
  register_all();
  return suite.run();
}
