// bench/adam/bench_adam.cpp — CPU Adam: s per 1e9 parameters of the kernel, of its ceiling, and of the whole pipeline.
//
//   bench_adam [--elements=N] [--iterations=N] [Google Benchmark's flags]
//
// DRAM bandwidth moves with whoever shares the machine, so absolute times say little: compare lines of one run, with
// --benchmark_enable_random_interleaving=true (the default here) and the ceiling (same bytes, no mathematics).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "actors/arena.hpp"
#include "actors/kernels/adam.hpp"
#include "actors/kernels/reduce.hpp"
#include "bench/adam/ceiling.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/task.hpp"

namespace tandem::bench {
namespace {

constexpr std::size_t kChunk = 128 * 1024;  // elements, as in the optimizer actor
constexpr double kClip = 1.0;

/// One flat unit with everything the variants need; made once, shared by all benchmarks.
struct Unit {
  std::size_t elements;
  HostBuffer master, exp_avg, exp_avg_sq, gradient, gradient_bf16, weight_bf16;

  explicit Unit(std::size_t count)
      : elements(count),
        master(count * 4),
        exp_avg(count * 4),
        exp_avg_sq(count * 4),
        gradient(count * 4),
        gradient_bf16(count * 2),
        weight_bf16(count * 2) {
    for (std::size_t i = 0; i < count; ++i) {
      master.as<float>()[i] = 0.02F * static_cast<float>(i % 1009) / 1009;
      gradient.as<float>()[i] = 1e-3F * (static_cast<float>(i % 997) / 997 - 0.5F);
    }
    cast(gradient.data(), DType::kF32, gradient_bf16.data(), DType::kBF16, 0, count);
    exp_avg.touch();
    exp_avg_sq.touch();
    weight_bf16.touch();
  }

  [[nodiscard]] AdamBuffers fp32() const {
    return {.master = master.as<float>(),
            .exp_avg = exp_avg.as<float>(),
            .exp_avg_sq = exp_avg_sq.as<float>(),
            .gradient = gradient.data()};
  }
  [[nodiscard]] AdamBuffers bf16() const {
    AdamBuffers buffers = fp32();
    buffers.gradient = gradient_bf16.data();
    buffers.gradient_type = DType::kBF16;
    buffers.weight = weight_bf16.data();
    buffers.weight_type = DType::kBF16;
    return buffers;
  }
  [[nodiscard]] std::size_t chunks() const { return (elements + kChunk - 1) / kChunk; }
};

std::size_t g_elements = 32'000'000;
std::int64_t g_iterations = 0;

Unit& unit() {
  static Unit shared(g_elements / kNormBlock * kNormBlock);
  return shared;
}

AdamStep next_step(double gradient_scale) {
  static std::int64_t step = 0;
  return AdamStep::make({.lr = 1e-5, .weight_decay = 0.01}, ++step, gradient_scale);
}

/// fn(begin, end) for every chunk of the unit, on the pool's threads.
template <class Fn>
Task<> over_chunks(CpuPool& pool, const Unit& u, Fn fn) {
  co_await pool.for_chunks(u.chunks(), [&u, fn](std::size_t chunk) {
    fn(chunk, chunk * kChunk, std::min(u.elements, (chunk + 1) * kChunk));
  });
}

Task<> ceiling(CpuPool& pool, AdamBuffers buffers) {
  co_await over_chunks(pool, unit(), [buffers](std::size_t, std::size_t begin, std::size_t end) {
    move_only(buffers, begin, end);
  });
}

Task<> kernel(CpuPool& pool, AdamBuffers buffers, double gradient_scale) {
  const AdamStep step = next_step(gradient_scale);
  co_await over_chunks(pool, unit(),
                       [buffers, step](std::size_t, std::size_t begin, std::size_t end) {
                         adam_update(step, buffers, begin, end);
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
Task<> pipeline(CpuPool& pool) {
  const Unit& u = unit();
  std::vector<GradientNorm> parts(u.chunks());
  co_await over_chunks(pool, u, [&](std::size_t chunk, std::size_t begin, std::size_t end) {
    add_norm(u.gradient_bf16.data(), DType::kBF16, begin, end, parts[chunk]);
  });
  co_await kernel(pool, u.bf16(), clip_coefficient(parts));
}

/// The same by way of an fp32 accumulator, as the engine does with several micro-steps or ranks.
Task<> pipeline_fp32_accumulator(CpuPool& pool) {
  const Unit& u = unit();
  std::vector<GradientNorm> parts(u.chunks());
  co_await over_chunks(pool, u, [&](std::size_t chunk, std::size_t begin, std::size_t end) {
    accumulate_with_norm(u.gradient.as<float>(), u.gradient_bf16.data(), DType::kBF16, begin, end,
                         AccumulateMode::kOverwrite, parts[chunk]);
  });
  AdamBuffers buffers = u.bf16();
  buffers.gradient = u.gradient.data();
  buffers.gradient_type = DType::kF32;
  co_await kernel(pool, buffers, clip_coefficient(parts));
}

template <class Body>
void measure(benchmark::State& state, int threads, Body body) {
  EventLoop loop;
  CpuPool pool(loop, {.threads = threads, .name = "adam"});
  loop.run(body, &pool);  // page faults, clocks and caches settle
  for (auto _ : state) {
    loop.run(body, &pool);
  }
  using benchmark::Counter;
  state.counters["s_per_1e9"] = Counter(static_cast<double>(unit().elements) / 1e9,
                                        Counter::kIsIterationInvariantRate | Counter::kInvert);
}

using Body = Task<> (*)(CpuPool*);

struct Variant {
  const char* name;
  Body body;
};

constexpr Variant kVariants[] = {
    {"ceiling/fp32", [](CpuPool* pool) -> Task<> { return ceiling(*pool, unit().fp32()); }},
    {"adam/fp32", [](CpuPool* pool) -> Task<> { return kernel(*pool, unit().fp32(), 1.0); }},
    {"ceiling/bf16", [](CpuPool* pool) -> Task<> { return ceiling(*pool, unit().bf16()); }},
    {"adam/bf16", [](CpuPool* pool) -> Task<> { return kernel(*pool, unit().bf16(), 1.0); }},
    {"pipeline/bf16", [](CpuPool* pool) -> Task<> { return pipeline(*pool); }},
    {"pipeline_fp32_accumulator/bf16",
     [](CpuPool* pool) -> Task<> { return pipeline_fp32_accumulator(*pool); }},
};

void register_all() {
  for (const int threads : {1, 2}) {
    for (const Variant& variant : kVariants) {
      const std::string name = std::string(variant.name) + "/threads:" + std::to_string(threads);
      auto* registered = benchmark::RegisterBenchmark(
          name.c_str(), [threads, body = variant.body](benchmark::State& state) {
            measure(state, threads, body);
          });
      registered->UseRealTime()->Unit(benchmark::kMillisecond);
      if (g_iterations > 0) {
        registered->Iterations(g_iterations);
      }
    }
  }
}

/// Takes our own flags out of the arguments.
void parse_own_flags(int& argc, char** argv) {
  const auto value_of = [](std::string_view argument, std::string_view flag) -> const char* {
    return argument.starts_with(flag) ? argument.data() + flag.size() : nullptr;
  };
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (const char* value = value_of(argv[i], "--elements=")) {
      g_elements = static_cast<std::size_t>(std::max(1e6, std::strtod(value, nullptr)));
    } else if (const char* count = value_of(argv[i], "--iterations=")) {
      g_iterations = std::strtoll(count, nullptr, 10);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::bench::parse_own_flags(argc, argv);
  std::string interleave = "--benchmark_enable_random_interleaving=true";
  std::vector<char*> arguments(argv, argv + argc);
  arguments.insert(arguments.begin() + 1, interleave.data());  // first, so that a given one wins
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) {
    return 2;
  }
  tandem::bench::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
