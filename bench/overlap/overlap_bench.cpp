// bench/overlap/overlap_bench.cpp — how much of the optimizer and of the links a schedule hides, on a simulated device.
//
//   bench_overlap [Google Benchmark's flags]
//
// A bf16 model of equal layers whose compute only lasts (layers.hpp); Adam and reductions are real. Copies between host and
// device take their time on the links and none of the host's cores, as a copy engine's. Names end in t_Adam/t_GPU. In each
// round t_Adam is measured with nothing beside it, before and after, on the same number of threads; t_GPU follows from it (a
// quarter forward, three quarters backward). The links do 25 GB/s each way. The efficiency is T*/T: T* the longest of
// t_GPU, t_Adam and t_link, T a step's time in a run of several.
// engine/MODE: the engine under --overlap MODE. policy/...: older schedules on the same parts (policies.hpp).
// control/ready_to_adam: from a reduced gradient to the first chunk of its update (control.hpp).
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/overlap/control.hpp"
#include "bench/overlap/layers.hpp"
#include "bench/overlap/policies.hpp"
#include "engine/engine.hpp"
#include "engine/process.hpp"
#include "engine/stopwatch.hpp"

namespace tandem::bench {
namespace {

constexpr double kRatios[] = {0.25, 0.5, 0.75, 1.0, 1.25, 1.5};
constexpr int kRounds = 5;
constexpr int kStepsOfRound = 4;
constexpr double kForwardShare = 0.25;
constexpr int kWarmUpSteps = 3;

Batch batch_of_nothing() { return {at::zeros({1, 1}, at::kLong), at::zeros({1, 1}, at::kLong)}; }

/// What is kept from one benchmark to the next; one engine lives at a time.
struct Bench {
  StepShape shape;
  std::unique_ptr<Policies> policies;
  std::shared_ptr<LayerTimes> times = std::make_shared<LayerTimes>();
  std::optional<Overlap> overlap;
  std::unique_ptr<Engine> engine;

  Policies& parts() {
    if (policies == nullptr) {
      policies = std::make_unique<Policies>(shape);
      (void)policies->adam_s();  // warm
    }
    return *policies;
  }
  Engine& engine_of(Overlap wanted);
};

Engine& Bench::engine_of(Overlap wanted) {
  if (overlap == wanted) {
    return *engine;
  }
  engine.reset();
  overlap = wanted;
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "bf16": {"enabled": true},
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})";
  EngineOptions options{.device = DeviceKind::kSim, .overlap = wanted};
  options.sim.memory_bytes = 1e12;
  options.sim.moves_bytes = false;
  options.sim.to_device_bytes_per_s = shape.link_bytes_per_s;
  options.sim.to_host_bytes_per_s = shape.link_bytes_per_s;
  options.compute_threads = 1;
  options.optimizer_threads = shape.optimizer_threads;
  engine = std::make_unique<Engine>(InitializeArgs{
      .model = timed_layers(static_cast<std::int64_t>(shape.layers),
                            static_cast<std::int64_t>(shape.weights_of_layer), times),
      .config = parse_config(config, "bench_overlap", 1),
      .options = options});
  const Batch batch = batch_of_nothing();
  for (int step = 0; step < kWarmUpSteps; ++step) {  // and all memory has been touched
    engine->train_step(std::span(&batch, 1));
  }
  return *engine;
}

struct Step {
  double gpu_s;
  double forward_s;  // of a layer
  double backward_s;
};

Step step_of(const Bench& bench, double adam_s, double ratio) {
  const double gpu_s = adam_s / ratio;
  const auto layers = static_cast<double>(bench.shape.layers);
  return {gpu_s, kForwardShare * gpu_s / layers, (1 - kForwardShare) * gpu_s / layers};
}

/// Where an engine's steps spent their time; means over a round's steps, added up over the rounds.
struct Where {
  double adam_busy_s = 0;
  double exposed_optimizer_s = 0;
  double exposed_gather_s = 0;
  double exposed_reduce_s = 0;

  void add(const Exposure& exposure) {
    adam_busy_s += exposure.optimizer_busy_s / kStepsOfRound;
    exposed_optimizer_s += exposure.optimizer_s / kStepsOfRound;
    exposed_gather_s += exposure.gather_s / kStepsOfRound;
    exposed_reduce_s += exposure.reduce_s / kStepsOfRound;
  }
};

double engine_step_s(Engine& engine, Where& where) {
  const Batch batch = batch_of_nothing();
  engine.train_step(std::span(&batch, 1));  // what follows is like what went before
  const Stopwatch watch;
  for (int step = 0; step < kStepsOfRound; ++step) {
    where.add(engine.train_step(std::span(&batch, 1)).exposure);
  }
  const double seconds = watch.elapsed_s() / kStepsOfRound;
  engine.drain();
  return seconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Rounds of: t_Adam alone, `measure` a step, t_Adam alone.
template <class Measure>
void run_rounds(benchmark::State& state, Bench* bench, double ratio, Measure measure) {
  Policies& parts = bench->parts();
  std::vector<double> efficiencies, steps_s, adams_s;
  for (auto _ : state) {
    const double before_s = parts.adam_s();
    const Step step = step_of(*bench, before_s, ratio);
    const double step_s = measure(parts, step);
    const double adam_s = (before_s + parts.adam_s()) / 2;
    state.SetIterationTime(step_s);
    const double ideal_s = std::max({step.gpu_s, adam_s, bench->shape.link_s()});
    efficiencies.push_back(ideal_s / step_s);
    steps_s.push_back(step_s);
    adams_s.push_back(adam_s);
  }
  state.counters["efficiency"] = median(efficiencies);
  state.counters["best"] = *std::ranges::max_element(efficiencies);
  state.counters["step_ms"] = 1e3 * median(steps_s);
  state.counters["adam_ms"] = 1e3 * median(adams_s);
  state.counters["link_ms"] = 1e3 * bench->shape.link_s();
}

void run_engine(benchmark::State& state, Bench* bench, double ratio, Overlap overlap) {
  Where where;
  run_rounds(state, bench, ratio, [&](Policies&, const Step& step) {
    bench->times->forward_s = step.forward_s;
    bench->times->backward_s = step.backward_s;
    return engine_step_s(bench->engine_of(overlap), where);
  });
  const auto rounds = static_cast<double>(state.iterations());
  state.counters["adam_busy_ms"] = 1e3 * where.adam_busy_s / rounds;
  state.counters["exposed_optimizer_ms"] = 1e3 * where.exposed_optimizer_s / rounds;
  state.counters["exposed_gather_ms"] = 1e3 * where.exposed_gather_s / rounds;
  state.counters["exposed_reduce_ms"] = 1e3 * where.exposed_reduce_s / rounds;
}

void run_policy(benchmark::State& state, Bench* bench, double ratio, bool is_serial) {
  run_rounds(state, bench, ratio, [&](Policies& parts, const Step& step) {
    return is_serial ? parts.serial_s(step.forward_s, step.backward_s)
                     : parts.backward_only_s(step.forward_s, step.backward_s);
  });
}

void run_control(benchmark::State& state) {
  std::vector<double> seconds;
  for (auto _ : state) {
    const std::vector<double> more = ready_to_adam_s(2000);
    state.SetIterationTime(median(more));
    seconds.insert(seconds.end(), more.begin(), more.end());
  }
  std::ranges::sort(seconds);
  state.counters["median_us"] = 1e6 * seconds[seconds.size() / 2];
  state.counters["p99_us"] = 1e6 * seconds[seconds.size() * 99 / 100];
}

template <class Function>
void add(const std::string& name, int iterations, Function function) {
  benchmark::RegisterBenchmark(name.c_str(), function)
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime()
      ->Iterations(iterations);
}

void register_all(Bench* bench) {
  for (const double ratio : kRatios) {
    for (const bool is_serial : {true, false}) {
      add(fmt::format("policy/{}/{}", is_serial ? "serial" : "backward_only", ratio), kRounds,
          [=](benchmark::State& state) { run_policy(state, bench, ratio, is_serial); });
    }
  }
  for (const Overlap overlap : {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull}) {
    for (const double ratio : kRatios) {
      add(fmt::format("engine/{}/{}", name_of(overlap), ratio), kRounds,
          [=](benchmark::State& state) { run_engine(state, bench, ratio, overlap); });
    }
  }
  add("control/ready_to_adam", 5, [](benchmark::State& state) { run_control(state); });
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::tune_process(argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  tandem::bench::Bench bench;
  tandem::bench::register_all(&bench);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
