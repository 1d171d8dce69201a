// One optimizer step of a small Qwen3 on this machine: forward, backward, clipping at 1.0, AdamW. Each iteration is a step
// of the real engine; tokens_per_s is the figure to quote, and only as a ratio to something measured in the same run
// (tools/bench/step_peers.py holds it against PyTorch). loss_1 .. loss_3 are the first three losses: equal for every
// overlap setting to the last bit.
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <benchmark/benchmark.h>

#include "bench/step/shapes.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/process.hpp"

namespace tandem::bench {
namespace {

struct Case {
  std::int64_t rows;
  std::int64_t length;
  std::string dtype;
  Overlap overlap;
  bool checkpointing;
};

void run_steps(benchmark::State& state, const Case& c) {
  const HfConfig shape = qwen3_20m();
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}, "bf16": {"enabled": )" +
      std::string(c.dtype == "bf16" ? "true" : "false") +
      R"(}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})";
  Engine engine({.model = random_model(shape, 0),
                 .config = parse_config(config, "bench_step", 1),
                 .options = {.overlap = c.overlap, .activation_checkpointing = c.checkpointing}});
  const Batch batch = random_tokens(c.rows, c.length, shape.vocab_size);
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
  state.counters["overlap_efficiency"] = efficiency / steps;
  state.counters["optimizer_ms"] = 1e3 * optimizer_s / steps;
  state.counters["exposed_optimizer_ms"] = 1e3 * exposed_optimizer_s / steps;
}

void add(const std::string& name, const Case& c) {
  benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run_steps(state, c); })
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime()
      ->MinTime(3.0);
}

/// 8 x 256 tokens is the shape to compare with others; 1 x 64 makes the optimizer a large part of the step, which is where
/// overlap has something to hide.
void register_all() {
  for (const auto& [rows, length] : {std::pair{8, 256}, std::pair{1, 64}}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const std::string prefix = "step/qwen3_20m/" + std::to_string(rows) + "x" +
                                 std::to_string(length) + "/" + dtype + "/";
      for (const Overlap overlap : {Overlap::kOff, Overlap::kComm, Overlap::kOffload}) {
        add(prefix + std::string(name_of(overlap)), {rows, length, dtype, overlap, false});
      }
      add(prefix + "offload/checkpointing", {rows, length, dtype, Overlap::kOffload, true});
    }
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::tune_process(argv);
  tandem::bench::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
