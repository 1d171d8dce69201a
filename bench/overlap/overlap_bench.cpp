// bench/overlap/overlap_bench.cpp — how much of the optimizer and of the links a schedule hides, on
// a simulated device or a real one.
//
//   bench_overlap [--device=sim|cuda|cpu] [Google Benchmark's flags]
//
// A bf16 model of equal layers whose compute only lasts (layers.hpp); Adam and reductions are real.
// Copies between host and device take their time on the links and none of the host's cores, as a
// copy engine's. Names end in t_Adam/t_GPU. In each round t_Adam is measured with nothing beside
// it, before and after, on the same number of threads; t_GPU follows from it (a quarter forward,
// three quarters backward). The links do 25 GB/s each way. The efficiency is T*/T: T* the longest
// of t_GPU, t_Adam and t_link, T a step's time in a run of several. engine/MODE: the engine under
// --overlap MODE. policy/...: older schedules on the same parts (policies.hpp).
// default/...: --overlap full with the state where the solver puts it (--placement auto), on a
// device of 2 TB/s with room for that of three layers; of the others some may be updated there, so
// that less than t_Adam is left for the pool. policy and engine have all state on the host.
// misses/RATE/beside_MODE: a step under `full` when RATE of the verdicts are made to miss, over one
// of MODE without, in turns, at t_Adam/t_GPU 0.75. control/ready_to_adam: from a reduced gradient
// to the first chunk of its update (control.hpp), gradients back to back or 2 ms of compute apart.
// --device=cuda, cpu: engine/... and misses/... alone. t_GPU is then made of matmuls, whose time,
// like the link's, is measured before and after each round (engines.hpp); the pool has all cores
// but one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/overlap/control.hpp"
#include "bench/overlap/engines.hpp"
#include "bench/overlap/layers.hpp"
#include "bench/overlap/policies.hpp"
#include "bench/program.hpp"
#include "bench/torch_context.hpp"
#include "engine/engine.hpp"
#include "engine/tensors/device_choice.hpp"
#include "engine/types/stopwatch.hpp"
#include "runtime/system/machine.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/reexec.hpp"

namespace tandem::bench {
namespace {

constexpr double kRatios[] = {0.25, 0.5, 0.75, 1.0, 1.25, 1.5};
constexpr int kRounds = 5;
constexpr int kStepsOfRound = 4;
constexpr double kRoomLayers = 3;  // of auto: a device that the model nearly fills
constexpr double kRatioOfMisses = 0.75;
constexpr int kTurns = 7;
constexpr int kStepsBetweenTurns = 20;

/// The state that is kept from one benchmark to the next; one engine lives at a time.
struct Bench {
  DeviceKind device = DeviceKind::kSim;
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
  if (overlap != wanted) {
    engine.reset();
    overlap = wanted;
    engine = timed_engine(shape, times, {.device = device, .overlap = wanted});
  }
  return *engine;
}

struct Step {
  double gpu_s;
  double forward_s;  // of a layer
  double backward_s;
  double link_s;
};

Step step_of(const Bench& bench, double adam_s, double ratio) {
  const double gpu_s = adam_s / ratio;
  const auto layers = static_cast<double>(bench.shape.layers);
  return {gpu_s, kForwardShare * gpu_s / layers, (1 - kForwardShare) * gpu_s / layers,
          bench.shape.link_s()};
}

/// The pool's time while nothing else goes on; the first passes find their memory cold.
double warm_adam_s(Bench& bench) {
  Policies& parts = bench.parts();
  return std::min({parts.adam_s(), parts.adam_s(), parts.adam_s()});
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
  const StepsOf steps = run_steps(engine, kStepsOfRound);
  for (const Exposure& exposure : steps.exposures) {
    where.add(exposure);
  }
  return steps.seconds / kStepsOfRound;
}

int matmuls_in(double seconds, double matmul_s) {
  return std::max(1, static_cast<int>(std::lround(seconds / matmul_s)));
}

/// The same where layers last by matmuls: `step` gets what they and the link take.
double matmul_step_s(Engine& engine, Bench* bench, Step& step, Where& where) {
  LayerTimes& times = *bench->times;
  const DevicePace before = pace_of(engine, bench->shape, times);
  const int forward = matmuls_in(step.forward_s, before.matmul_s);
  const int backward = matmuls_in(step.backward_s, before.matmul_s);
  times.forward_matmuls = forward;
  times.backward_matmuls = backward;
  const double step_s = engine_step_s(engine, where);
  times.backward_matmuls = 0;
  const DevicePace after = pace_of(engine, bench->shape, times);
  const auto layers = static_cast<double>(bench->shape.layers);
  step.gpu_s = layers * (forward + backward) * (before.matmul_s + after.matmul_s) / 2;
  step.link_s = (before.link_s + after.link_s) / 2;
  return step_s;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Rounds of: t_Adam alone, `measure` a step, t_Adam alone.
template <class Measure>
void run_rounds(benchmark::State& state, Bench* bench, double ratio, Measure measure) {
  Policies& parts = bench->parts();
  std::vector<double> efficiencies, steps_s, adams_s, links_s;
  for (auto _ : state) {
    const double before_s = parts.adam_s();
    Step step = step_of(*bench, before_s, ratio);
    const double step_s = measure(parts, step);
    const double adam_s = (before_s + parts.adam_s()) / 2;
    state.SetIterationTime(step_s);
    const double ideal_s = std::max({step.gpu_s, adam_s, step.link_s});
    efficiencies.push_back(ideal_s / step_s);
    steps_s.push_back(step_s);
    adams_s.push_back(adam_s);
    links_s.push_back(step.link_s);
  }
  state.counters["efficiency"] = median(efficiencies);
  state.counters["best"] = *std::ranges::max_element(efficiencies);
  state.counters["step_ms"] = 1e3 * median(steps_s);
  state.counters["adam_ms"] = 1e3 * median(adams_s);
  state.counters["link_ms"] = 1e3 * median(links_s);
}

void run_engine(benchmark::State& state, Bench* bench, double ratio, Overlap overlap) {
  Where where;
  run_rounds(state, bench, ratio, [&](Policies&, Step& step) {
    Engine& engine = bench->engine_of(overlap);
    if (bench->device != DeviceKind::kSim) {
      return matmul_step_s(engine, bench, step, where);
    }
    bench->times->forward_s = step.forward_s;
    bench->times->backward_s = step.backward_s;
    return engine_step_s(engine, where);
  });
  const auto rounds = static_cast<double>(state.iterations());
  state.counters["adam_busy_ms"] = 1e3 * where.adam_busy_s / rounds;
  state.counters["exposed_optimizer_ms"] = 1e3 * where.exposed_optimizer_s / rounds;
  state.counters["exposed_gather_ms"] = 1e3 * where.exposed_gather_s / rounds;
  state.counters["exposed_reduce_ms"] = 1e3 * where.exposed_reduce_s / rounds;
}

/// With the state where the solver puts it for a step of that ratio.
void run_default(benchmark::State& state, Bench* bench, double ratio) {
  const Step rough = step_of(*bench, warm_adam_s(*bench), ratio);
  bench->times->forward_s = rough.forward_s;
  bench->times->backward_s = rough.backward_s;
  const SimSpec device = {.to_device_bytes_per_s = bench->shape.link_bytes_per_s,
                          .to_host_bytes_per_s = bench->shape.link_bytes_per_s,
                          .acts = false};
  const PlacementChoice choice = choose_placements(
      timed_problem(bench->shape, bench->times, device, pool_speeds(bench->shape), kRoomLayers));
  bench->overlap.reset();
  bench->engine.reset();
  bench->engine = timed_engine(bench->shape, bench->times, {.placements = choice.placements});
  run_rounds(state, bench, ratio, [&](Policies&, Step& step) {
    bench->times->forward_s = step.forward_s;
    bench->times->backward_s = step.backward_s;
    return run_steps(*bench->engine, kStepsOfRound).seconds / kStepsOfRound;
  });
  const auto count = [&](StatePlacement place) {
    return static_cast<double>(std::ranges::count(choice.placements, place));
  };
  state.counters["predicted_ms"] = 1e3 * choice.step_s;
  state.counters["on_device"] = count(StatePlacement::kDevice);
  state.counters["streamed"] = count(StatePlacement::kStreamed);
}

void run_policy(benchmark::State& state, Bench* bench, double ratio, bool is_serial) {
  run_rounds(state, bench, ratio, [&](Policies& parts, Step& step) {
    return is_serial ? parts.serial_s(step.forward_s, step.backward_s)
                     : parts.backward_only_s(step.forward_s, step.backward_s);
  });
}

/// Steps of an engine that misses beside those of another one, in turns.
void run_misses(benchmark::State& state, Bench* bench, double rate, Overlap other) {
  bench->overlap.reset();
  bench->engine.reset();
  const Step step = step_of(*bench, warm_adam_s(*bench), kRatioOfMisses);
  bench->times->forward_s = step.forward_s;
  bench->times->backward_s = step.backward_s;
  const auto engine_of = [bench](Overlap overlap, double forced_misses) {
    return timed_engine(
        bench->shape, bench->times,
        {.device = bench->device, .overlap = overlap, .forced_misses = forced_misses});
  };
  const auto missing = engine_of(Overlap::kFull, rate);
  const auto beside = engine_of(other, 0);
  if (bench->device != DeviceKind::kSim) {  // layers last by matmuls
    bench->times->backward_matmuls = 0;
    const double matmul_s = pace_of(*missing, bench->shape, *bench->times).matmul_s;
    bench->times->forward_matmuls = matmuls_in(step.forward_s, matmul_s);
    bench->times->backward_matmuls = matmuls_in(step.backward_s, matmul_s);
  }
  std::vector<double> ratios;
  StepsOf all;
  for (auto _ : state) {
    const StepsOf steps = run_steps(*missing, kStepsBetweenTurns);
    ratios.push_back(steps.seconds / run_steps(*beside, kStepsBetweenTurns).seconds);
    state.SetIterationTime(steps.seconds / kStepsBetweenTurns);
    all.seconds += steps.seconds;
    all.missed += steps.missed;
    all.speculated += steps.speculated;
  }
  const auto steps = static_cast<double>(state.iterations() * kStepsBetweenTurns);
  state.counters["of_other"] = median(ratios);
  state.counters["missed"] = all.missed / steps;
  state.counters["speculated"] = all.speculated / steps;
}

void measure_control(benchmark::State& state, int times, Duration compute) {
  std::vector<double> seconds;
  double wall_s = 0;
  double cpu_s = 0;
  for (auto _ : state) {
    const ControlRun run = run_control(times, compute);
    state.SetIterationTime(median(run.ready_to_adam_s));
    seconds.insert(seconds.end(), run.ready_to_adam_s.begin(), run.ready_to_adam_s.end());
    wall_s += run.wall_s;
    cpu_s += run.cpu_s;
  }
  const auto updates = static_cast<double>(state.iterations() * times);
  state.counters["update_us"] = 1e6 * wall_s / updates;
  state.counters["update_cpu_us"] = 1e6 * cpu_s / updates;
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

void register_engines(Bench* bench) {
  for (const Overlap overlap : {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull}) {
    for (const double ratio : kRatios) {
      add(fmt::format("engine/{}/{}", name_of(overlap), ratio), kRounds,
          [=](benchmark::State& state) { run_engine(state, bench, ratio, overlap); });
    }
  }
}

void register_misses(Bench* bench) {
  for (const double rate : {0.0, 0.05, 0.5}) {
    for (const Overlap other : {Overlap::kFull, Overlap::kOffload}) {
      add(fmt::format("misses/{}/beside_{}", rate, name_of(other)), kTurns,
          [=](benchmark::State& state) { run_misses(state, bench, rate, other); });
    }
  }
}

void register_all(Bench* bench) {
  for (const double ratio : kRatios) {
    for (const bool is_serial : {true, false}) {
      add(fmt::format("policy/{}/{}", is_serial ? "serial" : "backward_only", ratio), kRounds,
          [=](benchmark::State& state) { run_policy(state, bench, ratio, is_serial); });
    }
  }
  register_engines(bench);
  for (const double ratio : kRatios) {
    add(fmt::format("default/{}", ratio), kRounds,
        [=](benchmark::State& state) { run_default(state, bench, ratio); });
  }
  register_misses(bench);
  add("control/ready_to_adam", 5,
      [](benchmark::State& state) { measure_control(state, 2000, Duration(0)); });
  add("control/ready_to_adam_every_2_ms", 5,
      [](benchmark::State& state) { measure_control(state, 500, std::chrono::milliseconds(2)); });
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem;
  reexec_with_tuned_env();
  return guarded_main([&] {
    bench::Suite suite(argc, argv, "what each schedule hides, on a simulated device or a real one");
    const std::string device =
        suite.choice("--device", "sim", {"sim", "cuda", "cpu"}, "where the model computes");
    suite.begin();
    bench::add_torch_context();
    bench::Bench bench;
    if (device != "sim") {
      bench.device = choose_device(device);
      bench.shape.optimizer_threads = std::max(1, machine::usable_cpus() - 1);
      bench::register_engines(&bench);
      bench::register_misses(&bench);
    } else {
      bench::register_all(&bench);
    }
    return suite.run();
  });
}
