// bench/adam/bench_adam.cpp — CPU Adam: s per 1e9 parameters of the kernel, of its ceiling, and of
// the whole pipeline, for every layout of the state.
//
//   bench_adam [--elements=N] [--iterations=N] [Google Benchmark's flags]
//
// DRAM bandwidth moves with the other loads of the machine, so absolute times say little: compare
// lines of one run, with
// --benchmark_enable_random_interleaving=true (the default here) and the ceiling (same bytes, no
// mathematics). The efficiency/ lines pair them: ceiling and kernel in turns, and of their ratios
// the median.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/simd_target.hpp"
#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/memory/arena.hpp"
#include "bench/adam/ceiling.hpp"
#include "bench/adam/layout_unit.hpp"
#include "bench/program.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/task.hpp"

namespace tandem::bench {
namespace {

constexpr std::size_t kChunk = 128 * 1024;  // elements, as in the optimizer actor
constexpr double kClip = 1.0;

std::size_t g_elements = 32'000'000;
std::int64_t g_iterations = 0;
int g_threads = 0;  // 0: one, and two

/// Units of the usual size are kept, as their benchmarks may run in any order; of the others one
/// lives at a time.
LayoutUnit& unit_of(Mix mix, std::size_t elements, std::size_t shift) {
  static std::unique_ptr<LayoutUnit> unit;
  unit.reset();
  unit = std::make_unique<LayoutUnit>(mix, elements, 0.01, shift);
  return *unit;
}

LayoutUnit& usual_unit(Mix mix) {
  static std::map<Mix, LayoutUnit> units;
  return units.try_emplace(mix, mix, g_elements / kNormTile * kNormTile).first->second;
}

std::size_t chunks_of(std::size_t elements) { return (elements + kChunk - 1) / kChunk; }

/// fn(chunk, begin, end) for every chunk of the unit, on the pool's threads.
template <class Fn>
Task<> over_chunks(CpuPool* pool, std::size_t elements, Fn fn) {
  co_await pool->for_chunks(chunks_of(elements), [elements, fn](std::size_t chunk) {
    fn(chunk, chunk * kChunk, std::min(elements, (chunk + 1) * kChunk));
  });
}

Task<> ceiling(CpuPool* pool, UpdateBuffers buffers, std::size_t elements) {
  co_await over_chunks(pool, elements, [buffers](std::size_t, std::size_t begin, std::size_t end) {
    move_only(buffers, begin, end);
  });
}

Task<> kernel(CpuPool* pool, UpdateBuffers buffers, std::size_t elements, UpdateStep step) {
  co_await over_chunks(pool, elements,
                       [buffers, step](std::size_t, std::size_t begin, std::size_t end) {
                         apply_update(step, buffers, begin, end);
                       });
}

double clip_coefficient(const std::vector<GradientNorm>& parts) {
  GradientNorm total;
  for (const GradientNorm& part : parts) {
    total.merge(part);
  }
  const double norm = std::sqrt(total.sum_of_squares.value());
  return std::min(1.0, kClip / (norm + 1e-6));
}

/// bf16 gradient in -> norm -> clip -> Adam -> bf16 weight out.
Task<> pipeline(CpuPool* pool, LayoutUnit* unit) {
  const UpdateBuffers buffers = unit->buffers();
  std::vector<GradientNorm> parts(chunks_of(unit->elements()));
  co_await over_chunks(pool, unit->elements(),
                       [&](std::size_t chunk, std::size_t begin, std::size_t end) {
                         add_norm(buffers.gradient, DType::kBF16, begin, end, parts[chunk]);
                       });
  co_await kernel(pool, buffers, unit->elements(), unit->next_step(clip_coefficient(parts)));
}

/// The same by way of an fp32 accumulator, as the engine does with several micro-steps or ranks.
Task<> pipeline_fp32_accumulator(CpuPool* pool, LayoutUnit* unit, float* accumulator) {
  UpdateBuffers buffers = unit->buffers();
  std::vector<GradientNorm> parts(chunks_of(unit->elements()));
  co_await over_chunks(pool, unit->elements(),
                       [&](std::size_t chunk, std::size_t begin, std::size_t end) {
                         accumulate_with_norm(accumulator, buffers.gradient, DType::kBF16, begin,
                                              end, AccumulateMode::kOverwrite, parts[chunk]);
                       });
  buffers.gradient = accumulator;
  buffers.gradient_type = DType::kF32;
  co_await kernel(pool, buffers, unit->elements(), unit->next_step(clip_coefficient(parts)));
}

struct Runner {
  EventLoop loop;
  CpuPool pool;
  LayoutUnit& unit;

  Runner(int threads, LayoutUnit& u) : pool(loop, {.threads = threads, .name = "adam"}), unit(u) {}

  void ceiling(bool apart) {
    loop.run(bench::ceiling, &pool, unit.buffers(apart), unit.elements());
  }
  void kernel(bool apart) {
    loop.run(bench::kernel, &pool, unit.buffers(apart), unit.elements(), unit.next_step(1.0));
  }
  void pipeline(bool) { loop.run(bench::pipeline, &pool, &unit); }
  void pipeline_fp32_accumulator(bool) {
    if (accumulator.size_bytes() == 0) {
      accumulator = HostBuffer(unit.elements() * sizeof(float));
    }
    loop.run(bench::pipeline_fp32_accumulator, &pool, &unit, accumulator.as<float>());
  }

  HostBuffer accumulator;
};

using Body = void (Runner::*)(bool apart);

void measure(benchmark::State& state, Mix mix, int threads, Body body, bool apart) {
  Runner runner(threads, usual_unit(mix));
  (runner.*body)(apart);  // page faults, clocks and caches settle
  for (auto _ : state) {
    (runner.*body)(apart);
  }
  using benchmark::Counter;
  state.counters["s_per_1e9"] = Counter(static_cast<double>(runner.unit.elements()) / 1e9,
                                        Counter::kIsIterationInvariantRate | Counter::kInvert);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
}

/// Ceiling and kernel in turns.
void measure_pairs(benchmark::State& state, Mix mix, int threads, std::size_t elements,
                   std::size_t shift, bool apart) {
  Runner runner(threads, unit_of(mix, elements, shift));
  const auto seconds = [&runner, apart](Body body, std::size_t repeats) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < repeats; ++i) {
      (runner.*body)(apart);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return taken.count() / static_cast<double>(repeats);
  };
  const std::size_t repeats = std::max<std::size_t>(1, 4'000'000 / elements);
  std::vector<double> ceilings, kernels, ratios;
  seconds(&Runner::kernel, 1);
  for (auto _ : state) {
    const bool first = ratios.size() % 2 == 0;
    const double before = first ? seconds(&Runner::ceiling, repeats) : 0;
    kernels.push_back(seconds(&Runner::kernel, repeats));
    ceilings.push_back(first ? before : seconds(&Runner::ceiling, repeats));
    ratios.push_back(ceilings.back() / kernels.back());
    state.SetIterationTime(kernels.back());
  }
  const double scale = 1e9 / static_cast<double>(elements);
  state.counters["ceiling_s_per_1e9"] = median(ceilings) * scale;
  state.counters["s_per_1e9"] = median(kernels) * scale;
  state.counters["efficiency"] = median(ratios);
}

void add(const std::string& name, int threads, void (*options)(benchmark::internal::Benchmark*),
         auto body) {
  auto* registered = benchmark::RegisterBenchmark(
      (name + "/threads:" + std::to_string(threads)).c_str(), std::move(body));
  registered->Unit(benchmark::kMillisecond);
  options(registered);
  if (g_iterations > 0) {
    registered->Iterations(g_iterations);
  }
}

void add_plain(const std::string& name, Mix mix, int threads, Body body, bool apart = false) {
  add(
      name + "/" + std::string(name_of(mix)), threads, [](auto* b) { b->UseRealTime(); },
      [=](benchmark::State& state) { measure(state, mix, threads, body, apart); });
}

void add_pairs(Mix mix, int threads, std::size_t elements, std::size_t shift, bool apart) {
  const std::string name = (apart ? "efficiency_apart/" : "efficiency/") +
                           std::string(name_of(mix)) + "/n:" + std::to_string(elements) +
                           "/shift:" + std::to_string(shift);
  add(
      name, threads, [](auto* b) { b->UseManualTime()->Iterations(21); },
      [=](benchmark::State& state) { measure_pairs(state, mix, threads, elements, shift, apart); });
}

void register_all() {
  for (const int threads : g_threads > 0 ? std::vector{g_threads} : std::vector{1, 2}) {
    for (const Mix mix : kMixes) {
      add_plain("ceiling", mix, threads, &Runner::ceiling);
      add_plain("adam", mix, threads, &Runner::kernel);
      add_plain("ceiling_apart", mix, threads, &Runner::ceiling, true);
      add_plain("adam_apart", mix, threads, &Runner::kernel, true);
      if (mix != Mix::kFp32) {
        add_plain("pipeline", mix, threads, &Runner::pipeline);
        add_plain("pipeline_fp32_accumulator", mix, threads, &Runner::pipeline_fp32_accumulator);
      }
      for (const std::size_t elements : {1UL << 20, 1UL << 22, 1UL << 24, (1UL << 24) + 12345}) {
        for (const std::size_t shift : {0UL, 5UL}) {
          add_pairs(mix, threads, elements, shift, false);
        }
        add_pairs(mix, threads, elements, 0, true);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Suite suite(argc, argv, "CPU Adam: seconds per 1e9 parameters, for each layout of the state");
  g_elements = static_cast<std::size_t>(suite.number(
      "--elements", static_cast<std::int64_t>(g_elements), {.least = 1'000'000}, "of a unit"));
  g_iterations = suite.number("--iterations", 0, {}, "of each benchmark; 0: as many as it takes");
  g_threads = static_cast<int>(
      suite.number("--threads", 0, {.most = 1024}, "of the pool; 0: one, and two"));
  suite.begin({"--benchmark_enable_random_interleaving=true"});
  Suite::add_context("simd", tandem::simd_target());
  register_all();
  return suite.run();
}
