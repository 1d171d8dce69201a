// One optimizer step of a small Qwen3 on this machine: forward, backward, clipping, AdamW. Each
// iteration is a step of the real engine; the last one's time includes the updates that end behind
// it. tokens_per_s is the figure to quote, and only as a ratio to something measured in the same
// run (tools/bench/step_peers.py holds it against PyTorch). loss_1 .. loss_3 are the first three
// losses: equal for every overlap setting to the last bit. ranks/...: two ranks as threads, with
// what each holds in memory (MiB). --device=cuda: steps on a GPU, cuda/..., alone. --config=FILE:
// of the model that a config.json describes (random weights), step/... or cuda/... alone; --rows=N
// --length=N: in this shape. grad_norm, misses, skips: of the timed steps, the last norm. *_ms:
// means of a step; predicted_ms: what the placement's model expected. peak_MiB: the most that the
// process had resident so far; device_MiB: the same of the GPU. --steps=N steps are timed; without
// it, 25 on a GPU, so that an engine is made once, and as many as take 3 s on the CPU.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/program.hpp"
#include "bench/step/shapes.hpp"
#include "bench/torch_context.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/plan/run_plan.hpp"
#include "engine/tensors/device_choice.hpp"
#include "engine/types/stopwatch.hpp"
#include "models/causal_lm.hpp"
#include "runtime/system/machine.hpp"
#include "tests/support/thread_ranks.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/reexec.hpp"

namespace tandem::bench {
namespace {

struct Settings {
  DeviceKind device = DeviceKind::kCpu;
  std::int64_t steps = 0;  // that are timed; 0: those of three seconds
  Placement placement = Placement::kAuto;
  std::int64_t stage = 3;
  std::int64_t gather_slots = 0;
  std::int64_t inflight_buckets = 0;
  std::int64_t micro_steps = 1;
  std::int64_t document_length = 0;  // of packed rows; 0: a row is one document
  std::int64_t lora_rank = 0;        // 0: the whole model learns
  double clip = 1;
  double forced_misses = 0;
  std::string optimizer_state = "fp32";
};

struct Case {
  HfConfig shape;
  std::int64_t rows;
  std::int64_t length;
  std::string dtype;
  Overlap overlap;
  bool checkpointing;
  Settings settings;
};

std::string config_of(const Case& c) {
  const Settings& s = c.settings;
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {},
    "gradient_clipping": {}, "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4,
    "weight_decay": 0.01}}}}, "bf16": {{"enabled": {}}}, "zero_optimization": {{"stage": {},
    "offload_optimizer": {{"device": "cpu"}}}}}})",
      c.rows, s.micro_steps, s.clip, c.dtype == "bf16", s.stage);
}

EngineOptions options_of(const Case& c) {
  const Settings& s = c.settings;
  EngineOptions options{.overlap = c.overlap, .activation_checkpointing = c.checkpointing};
  options.device = s.device;
  options.placement = s.placement;
  options.gather_slots = static_cast<int>(s.gather_slots);
  options.inflight_buckets = static_cast<int>(s.inflight_buckets);
  options.forced_misses = s.forced_misses;
  options.state_layout = *parse_enum<StateLayout>(s.optimizer_state);
  return with_gpu(std::move(options));
}

/// Sums over the timed steps.
struct Sums {
  Exposure exposure;
  double efficiency = 0;
  double misses = 0;
  double skips = 0;
  StepResult last;

  void add(const StepResult& result) {
    efficiency += result.overlap_efficiency;
    exposure.optimizer_s += result.exposure.optimizer_s;
    exposure.optimizer_busy_s += result.exposure.optimizer_busy_s;
    exposure.gather_s += result.exposure.gather_s;
    exposure.reduce_s += result.exposure.reduce_s;
    exposure.activation_s += result.exposure.activation_s;
    misses += result.verdict.outcome == StepOutcome::kRollback ? 1 : 0;
    skips += result.verdict.outcome == StepOutcome::kSkip ? 1 : 0;
    last = result;
  }
};

void report(benchmark::State& state, const Case& c, const Sums& sums, double predicted_step_s) {
  constexpr double kMiB = 1048576.0;
  const auto steps = static_cast<double>(state.iterations());
  auto& counters = state.counters;
  counters["tokens_per_s"] =
      benchmark::Counter(static_cast<double>(c.settings.micro_steps * c.rows * c.length) * steps,
                         benchmark::Counter::kIsRate);
  counters["peak_MiB"] = static_cast<double>(machine::peak_rss_bytes()) / kMiB;
  counters["device_MiB"] = static_cast<double>(sums.last.peak_device_bytes) / kMiB;
  counters["overlap_efficiency"] = sums.efficiency / steps;
  counters["optimizer_ms"] = 1e3 * sums.exposure.optimizer_busy_s / steps;
  counters["exposed_optimizer_ms"] = 1e3 * sums.exposure.optimizer_s / steps;
  counters["exposed_gather_ms"] = 1e3 * sums.exposure.gather_s / steps;
  counters["exposed_reduce_ms"] = 1e3 * sums.exposure.reduce_s / steps;
  counters["exposed_activation_ms"] = 1e3 * sums.exposure.activation_s / steps;
  counters["predicted_ms"] = 1e3 * predicted_step_s;
  counters["grad_norm"] = sums.last.verdict.norm.value;
  counters["misses"] = sums.misses;
  counters["skips"] = sums.skips;
}

void run_steps(benchmark::State& state, const Case& c) {
  const Settings& s = c.settings;
  const Model model = random_model(c.shape, 0, s.lora_rank);
  const Config config = parse_config(config_of(c), "bench_step", 1);
  Alone alone;
  RunPlan plan = plan_run(
      model, config, options_of(c),
      {.records = c.rows * s.micro_steps, .length = c.length, .packed = s.document_length > 0}, {},
      alone);
  const double predicted_step_s = plan.predicted_step_s;
  Engine engine({.model = model, .config = config, .options = {}, .plan = std::move(plan)});
  const std::vector<Batch> batches(
      static_cast<std::size_t>(s.micro_steps),
      random_tokens(c.rows, c.length, c.shape.vocab_size, s.document_length));
  for (const char* name : {"loss_1", "loss_2", "loss_3"}) {  // also the warm-up
    state.counters[name] = engine.train_step(batches).loss;
  }
  engine.drain();
  Sums sums;
  benchmark::IterationCount done = 0;
  for (auto _ : state) {
    sums.add(engine.train_step(batches));
    if (++done == state.max_iterations) {
      engine.drain();  // the updates of the last step are of its time
    }
  }
  report(state, c, sums, predicted_step_s);
}

void add(const std::string& name, const Case& c) {
  auto* const added = benchmark::RegisterBenchmark(
      name.c_str(), [c](benchmark::State& state) { run_steps(state, c); });
  added->Unit(benchmark::kMillisecond)->UseRealTime();
  c.settings.steps > 0 ? added->Iterations(c.settings.steps) : added->MinTime(3.0);
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
void register_steps(const std::string& name, const HfConfig& shape, const Settings& settings,
                    std::span<const std::pair<std::int64_t, std::int64_t>> sizes) {
  const char* const suite = settings.device == DeviceKind::kCuda ? "cuda" : "step";
  for (const auto& [rows, length] : sizes) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const std::string prefix = fmt::format("{}/{}/{}x{}/{}/", suite, name, rows, length, dtype);
      for (const Overlap overlap : kOverlaps) {
        add(prefix + std::string(name_of(overlap)),
            {shape, rows, length, dtype, overlap, false, settings});
      }
      add(prefix + "full/checkpointing",
          {shape, rows, length, dtype, Overlap::kFull, true, settings});
    }
  }
}

Settings take_settings(Suite& suite) {
  Settings s;
  const std::string device =
      suite.choice("--device", "cpu", {"cpu", "cuda"}, "where the model computes");
  s.device = choose_device(device);
  const bool on_gpu = s.device == DeviceKind::kCuda;
  s.steps = suite.number("--steps", on_gpu ? 25 : 0, {.most = 100'000},
                         "that are timed; 0: as many as take three seconds");
  s.placement =
      *parse_enum<Placement>(suite.choice("--placement", "auto", {"auto", "cpu", "gpu", "stream"},
                                          "where the optimizer's state lies beside a GPU"));
  s.stage = suite.number("--stage", s.stage, {.least = 0, .most = 3}, "of ZeRO");
  s.gather_slots =
      suite.number("--gather_slots", 0, {.most = 100'000}, "gathered units at a time; 0: chosen");
  s.inflight_buckets = suite.number("--inflight_buckets", 0, {.most = 100'000},
                                    "units updated ahead of the verdict; 0: chosen");
  s.micro_steps = suite.number("--micro_steps", 1, {.least = 1, .most = 4096}, "of a step");
  s.document_length = suite.number("--document_length", 0, {.most = 1 << 20},
                                   "tokens of each document in packed rows; 0: not packed");
  s.lora_rank =
      suite.number("--lora_r", 0, {.most = 4096},
                   "adapters of that rank learn, on all linear layers; 0: the model does");
  s.clip = suite.real("--clip", s.clip, {}, "limit of the gradient norm; 0: none");
  s.forced_misses =
      suite.real("--forced_misses", 0, {.most = 1}, "share of the steps that are made to miss");
  s.optimizer_state = suite.choice("--optimizer_state", s.optimizer_state,
                                   {"fp32", "split", "bf16", "int8"}, "its layout");
  return s;
}

int run(int argc, char** argv) {
  Suite suite(argc, argv, "a whole training step, for each schedule");
  const std::string config =
      suite.text("--config", "", "config.json of the model; default: a Qwen3 of 20 M parameters");
  constexpr Range<std::int64_t> kSizes{.most = 1 << 20};
  const std::int64_t rows = suite.number("--rows", 0, kSizes, "of a micro-batch; 0: as named");
  const std::int64_t length = suite.number("--length", 0, kSizes, "tokens of a row; likewise");
  const Settings settings = take_settings(suite);
  suite.begin();
  add_torch_context();
  const bool on_gpu = settings.device == DeviceKind::kCuda;
  const HfConfig shape = config.empty() ? qwen3_20m() : read_hf_config(config);
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{8, 256}, {1, 64}};
  if (rows > 0 || length > 0) {
    sizes = {{std::max<std::int64_t>(1, rows), length > 0 ? length : 256}};
  } else if (on_gpu) {
    sizes.back() = {16, 1024};
  }
  register_steps(config.empty() ? "qwen3_20m" : shape.model_type, shape, settings, sizes);
  if (config.empty() && !on_gpu) {
    register_ranks();
  }
  return suite.run();
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env();
  return tandem::guarded_main([&] { return tandem::bench::run(argc, argv); });
}
