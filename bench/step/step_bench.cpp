// One optimizer step of a small Qwen3 on this machine: forward, backward, clipping at 1.0, AdamW.
// Each iteration is a step of the real engine; tokens_per_s is the figure to quote, and only as a
// ratio to something measured in the same run (tools/bench/step_peers.py holds it against PyTorch).
// loss_1 .. loss_3 are the first three losses: equal for every overlap setting to the last bit.
// ranks/...: two ranks as threads, with what each holds in memory (MiB). --device=cuda: steps on a
// GPU, cuda/..., alone. --config=FILE: of the model that a config.json describes (random weights),
// step/... or cuda/... alone; --rows=N --length=N: in this shape. peak_MiB: the most that the
// process had resident so far. On a GPU --steps=N steps are timed, so that an engine is made once,
// and --placement=auto|cpu|gpu|stream says where the optimizer's state lies.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/program.hpp"
#include "bench/step/shapes.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/tensors/device_choice.hpp"
#include "engine/types/stopwatch.hpp"
#include "models/causal_lm.hpp"
#include "runtime/system/machine.hpp"
#include "tests/support/thread_ranks.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/reexec.hpp"

namespace tandem::bench {
namespace {

struct OnGpu {
  int steps = 0;  // that are timed; 0: on the CPU
  Placement placement = Placement::kAuto;
};

struct Case {
  HfConfig shape;
  std::int64_t rows;
  std::int64_t length;
  std::string dtype;
  Overlap overlap;
  bool checkpointing;
  OnGpu gpu = {};
};

void run_steps(benchmark::State& state, const Case& c) {
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
    "bf16": {"enabled": )" +
      std::string(c.dtype == "bf16" ? "true" : "false") +
      R"(}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})";
  EngineOptions options{.overlap = c.overlap, .activation_checkpointing = c.checkpointing};
  options.device = c.gpu.steps > 0 ? DeviceKind::kCuda : DeviceKind::kCpu;
  options.placement = c.gpu.placement;
  Engine engine({.model = random_model(c.shape, 0),
                 .config = parse_config(config, "bench_step", 1),
                 .options = options});
  const Batch batch = random_tokens(c.rows, c.length, c.shape.vocab_size);
  for (const char* name : {"loss_1", "loss_2", "loss_3"}) {  // also the warm-up
    state.counters[name] = engine.train_step(std::span(&batch, 1)).loss;
  }
  engine.drain();
  double efficiency = 0;
  double exposed_optimizer_s = 0;
  double optimizer_s = 0;
  for (auto _ : state) {
    const StepResult result = engine.train_step(std::span(&batch, 1));
    efficiency += result.overlap_efficiency;
    exposed_optimizer_s += result.exposure.optimizer_s;
    optimizer_s += result.exposure.optimizer_busy_s;
  }
  engine.drain();
  const auto steps = static_cast<double>(state.iterations());
  state.counters["tokens_per_s"] = benchmark::Counter(
      static_cast<double>(c.rows * c.length) * steps, benchmark::Counter::kIsRate);
  state.counters["peak_MiB"] = static_cast<double>(machine::peak_rss_bytes()) / 1048576.0;
  state.counters["overlap_efficiency"] = efficiency / steps;
  state.counters["optimizer_ms"] = 1e3 * optimizer_s / steps;
  state.counters["exposed_optimizer_ms"] = 1e3 * exposed_optimizer_s / steps;
}

void add(const std::string& name, const Case& c) {
  auto* const added = benchmark::RegisterBenchmark(
      name.c_str(), [c](benchmark::State& state) { run_steps(state, c); });
  added->Unit(benchmark::kMillisecond)->UseRealTime();
  c.gpu.steps > 0 ? added->Iterations(c.gpu.steps) : added->MinTime(3.0);
}

struct RankCase {
  int world_size;
  int stage;
  Overlap overlap;
};

/// The same model on ranks of one core each; the time is that of the first rank, whose steps end
/// with everybody's.
void run_on_ranks(benchmark::State& state, const RankCase& c) {
  const HfConfig shape = qwen3_20m();
  const std::string config = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}}, "bf16": {{"enabled": true}},
    "zero_optimization": {{"stage": {}}}}})",
      c.stage);
  constexpr int kWarmUp = 2;
  constexpr int kSteps = 12;
  for (auto _ : state) {
    const auto results = on_ranks(c.world_size, [&](std::shared_ptr<Communicator> ranks) {
      EngineOptions options = {.overlap = c.overlap, .compute_threads = 1, .optimizer_threads = 1};
      Engine engine({.model = random_model(shape, 0),
                     .config = parse_config(config, "bench_step", c.world_size),
                     .options = options,
                     .communicator = std::move(ranks)});
      const Batch batch = random_tokens(1, 128, shape.vocab_size);
      std::vector<double> step_s;
      for (int step = 0; step < kWarmUp + kSteps; ++step) {
        const Stopwatch watch;
        engine.train_step(std::span(&batch, 1));
        if (step >= kWarmUp) {
          step_s.push_back(watch.elapsed_s());
        }
      }
      engine.drain();
      std::ranges::sort(step_s);
      return std::pair(step_s[step_s.size() / 2], engine.resident_bytes());
    });
    const auto& [median_s, bytes] = results.front();
    state.SetIterationTime(median_s);
    const auto mib = [](std::size_t count) { return static_cast<double>(count) / 1048576.0; };
    state.counters["weights_MiB"] = mib(bytes.weights);
    state.counters["gradients_MiB"] = mib(bytes.gradients);
    state.counters["optimizer_MiB"] = mib(bytes.optimizer);
  }
}

constexpr Overlap kOverlaps[] = {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull};

void register_ranks() {
  for (const int world_size : {1, 2, 4}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const Overlap overlap : kOverlaps) {
        const RankCase c = {world_size, stage, overlap};
        benchmark::RegisterBenchmark(
            fmt::format("ranks/{}/stage_{}/{}", world_size, stage, name_of(overlap)).c_str(),
            [c](benchmark::State& state) { run_on_ranks(state, c); })
            ->Unit(benchmark::kMillisecond)
            ->UseManualTime()
            ->Iterations(1);
      }
    }
  }
}

/// 8 x 256 tokens is the shape to compare with others; 1 x 64 makes the optimizer a large part of
/// the step, which is where overlap has something to hide; 16 x 1024 fills a GPU.
void register_steps(const std::string& name, const HfConfig& shape, OnGpu gpu,
                    std::span<const std::pair<int, int>> sizes) {
  const char* const suite = gpu.steps > 0 ? "cuda" : "step";
  for (const auto& [rows, length] : sizes) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const std::string prefix = fmt::format("{}/{}/{}x{}/{}/", suite, name, rows, length, dtype);
      for (const Overlap overlap : kOverlaps) {
        add(prefix + std::string(name_of(overlap)),
            {shape, rows, length, dtype, overlap, false, gpu});
      }
      add(prefix + "full/checkpointing", {shape, rows, length, dtype, Overlap::kFull, true, gpu});
    }
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem;
  reexec_with_tuned_env();
  return guarded_main([&] {
    const char* config = bench::take_flag(argc, argv, "--config=");
    const char* device = bench::take_flag(argc, argv, "--device=");
    const char* rows = bench::take_flag(argc, argv, "--rows=");
    const char* length = bench::take_flag(argc, argv, "--length=");
    const char* steps = bench::take_flag(argc, argv, "--steps=");
    const char* placement = bench::take_flag(argc, argv, "--placement=");
    const HfConfig shape = config != nullptr ? read_hf_config(config) : bench::qwen3_20m();
    const std::string name = config != nullptr ? shape.model_type : "qwen3_20m";
    require_one_of("--device", device != nullptr ? device : "cpu", {"cpu", "cuda"});
    require_one_of("--placement", placement != nullptr ? placement : "auto",
                   {"auto", "cpu", "gpu", "stream"});
    bench::OnGpu gpu{.placement =
                         *parse_enum<Placement>(placement != nullptr ? placement : "auto")};
    const DeviceKind on = device != nullptr ? choose_device(device) : DeviceKind::kCpu;
    std::vector<std::pair<int, int>> sizes = {{8, 256}, {1, 64}};
    if (rows != nullptr || length != nullptr) {
      sizes = {
          {rows != nullptr ? std::atoi(rows) : 1, length != nullptr ? std::atoi(length) : 256}};
    } else if (on == DeviceKind::kCuda) {
      sizes.back() = {16, 1024};
    }
    if (on == DeviceKind::kCuda) {
      gpu.steps = steps != nullptr ? std::max(1, std::atoi(steps)) : 25;
    }
    bench::register_steps(name, shape, gpu, sizes);
    if (config == nullptr && on == DeviceKind::kCpu) {
      bench::register_ranks();
    }
    return bench::run_benchmarks(argc, argv);
  });
}
