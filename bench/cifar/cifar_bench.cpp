// Training steps of the CIFAR-10 net: the engine's, loader included, as cifar10 runs it. images_per_s is the figure to
// quote, and only beside something measured in the same run: tools/bench/cifar_peers.py holds it against PyTorch's loop.
// compute_us, wait_us: per step, how long the compute lane worked and how long it waited for gathers, reductions and the
// optimizer; what is left is the loop's.
#include <cstdint>
#include <memory>
#include <string>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/program.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/process.hpp"
#include "models/cifar/dataset.hpp"
#include "models/cifar/net.hpp"
#include "models/cifar/records.hpp"

namespace tandem::bench {
namespace {

constexpr std::int64_t kPictures = 2000;
constexpr int kWarmupSteps = 50;

void run_steps(benchmark::State& state, std::int64_t batch, int threads, int stage,
               Overlap overlap) {
  const std::string config = fmt::format(
      R"({{"train_batch_size": {}, "gradient_clipping": 1.0, "zero_optimization": {{"stage": {}}},
           "optimizer": {{"type": "Adam", "params": {{"lr": 0.001, "betas": [0.8, 0.999]}}}}}})",
      batch, stage);
  static const auto images =
      std::make_shared<const CifarImages>(generated_cifar(kPictures, 1).train);
  Engine engine({.model = make_cifar_model(cifar_initial_weights(0)),
                 .config = parse_config(config, "bench_cifar", 1),
                 .options = {.overlap = overlap, .compute_threads = threads},
                 .dataset = std::make_shared<CifarDataset>(images),
                 .epochs = 0,
                 .prefetch = {.depth = 4}});
  for (int i = 0; i < kWarmupSteps; ++i) {
    engine.train_step();
  }
  Exposure total;
  for (auto _ : state) {
    const auto result = engine.train_step();
    const Exposure& e = result->exposure;
    total.compute_busy_s += e.compute_busy_s;
    total.gather_s += e.gather_s + e.reduce_s + e.optimizer_s;
    total.data_s += e.data_s;
  }
  engine.drain();
  const auto steps = static_cast<double>(state.iterations());
  state.counters["images_per_s"] =
      benchmark::Counter(static_cast<double>(batch) * steps, benchmark::Counter::kIsRate);
  state.counters["compute_us"] = 1e6 * total.compute_busy_s / steps;
  state.counters["wait_us"] = 1e6 * total.gather_s / steps;
  state.counters["data_us"] = 1e6 * total.data_s / steps;
}

void add(std::int64_t batch, int threads, int stage, Overlap overlap) {
  const std::string name =
      fmt::format("cifar/batch_{}/threads_{}/stage_{}/{}", batch, threads, stage, name_of(overlap));
  benchmark::RegisterBenchmark(
      name.c_str(),
      [=](benchmark::State& state) { run_steps(state, batch, threads, stage, overlap); })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime()
      ->MinTime(1.5);
}

void register_all() {
  for (const std::int64_t batch : {4, 16}) {
    for (const int threads : {1, 2}) {
      for (const int stage : {0, 3}) {
        for (const Overlap overlap : {Overlap::kOff, Overlap::kOffload}) {
          add(batch, threads, stage, overlap);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::tune_process(argv);
  tandem::bench::register_all();
  return tandem::bench::run_benchmarks(argc, argv);
}
