// Training steps of the CIFAR-10 net: the engine's, loader included, as cifar10 runs it.
// images_per_s is the figure to quote, and only beside something measured in the same run:
// tools/bench/cifar_peers.py holds it against PyTorch's loop. compute_us, wait_us: per step, how
// long the compute lane worked and how long it waited for gathers, reductions and the optimizer;
// what is left is the loop's. moe/...: the net with mixtures of experts. ways/...: one mixture's
// tokens to its experts and back, forward and backward, without its gate and its experts: the time
// of a mixture whose experts do nothing, less that of its routes. spread/...: a step of two ranks
// (threads, one compute thread each) whose experts are on each of them, or over both; the
// difference is what the exchange of tokens costs.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "bench/program.hpp"
#include "bench/torch_context.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/types/stopwatch.hpp"
#include "models/cifar/dataset.hpp"
#include "models/cifar/moe_net.hpp"
#include "models/cifar/net.hpp"
#include "models/cifar/records.hpp"
#include "models/moe/layer.hpp"
#include "tests/support/thread_ranks.hpp"
#include "trainer/program/reexec.hpp"

namespace tandem::bench {
namespace {

constexpr std::int64_t kImages = 2000;
constexpr int kWarmupSteps = 50;

struct Case {
  std::int64_t batch = 16;
  int threads = 1;
  int stage = 0;
  Overlap overlap = Overlap::kOff;
};

void run_steps(benchmark::State& state, Model model, const Case& c) {
  const std::string config = fmt::format(
      R"({{"train_batch_size": {}, "gradient_clipping": 1.0, "zero_optimization": {{"stage": {}}},
           "optimizer": {{"type": "Adam", "params": {{"lr": 0.001, "betas": [0.8, 0.999]}}}}}})",
      c.batch, c.stage);
  static const auto images = std::make_shared<const CifarImages>(generated_cifar(kImages, 1).train);
  Engine engine({.model = std::move(model),
                 .config = parse_config(config, "bench_cifar", 1),
                 .options = {.overlap = c.overlap, .compute_threads = c.threads},
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
      benchmark::Counter(static_cast<double>(c.batch) * steps, benchmark::Counter::kIsRate);
  state.counters["compute_us"] = 1e6 * total.compute_busy_s / steps;
  state.counters["wait_us"] = 1e6 * total.gather_s / steps;
  state.counters["data_us"] = 1e6 * total.data_s / steps;
}

CifarMoe mixtures(bool residual) {
  return {.experts = residual ? std::vector<std::int64_t>{2, 4} : std::vector<std::int64_t>{2},
          .residual = residual,
          .gate = {.min_capacity = 0, .noise = GateNoisePolicy::kRSample}};
}

/// Seconds of a forward and backward of `run`, which gives a tensor.
template <class Run>
double seconds_of(Run run, const at::Tensor& gate) {
  const Stopwatch watch;
  torch::autograd::backward({run().sum()}, {});
  gate.mutable_grad().reset();
  return watch.elapsed_s();
}

void run_ways(benchmark::State& state, std::int64_t tokens, std::int64_t width,
              std::int64_t experts, std::int64_t k) {
  const GateOptions options{.k = k, .min_capacity = 0, .noise = GateNoisePolicy::kRSample};
  const at::Tensor x = at::randn({tokens, width});
  const at::Tensor gate = at::randn({experts, width}).mul_(0.1).requires_grad_(true);
  const GateDraw draw{.micro_batch = 1};
  const auto mixture = [&] {
    return mixture_of_experts(x, gate, options, draw, [](const at::Tensor& t) { return t; }).y;
  };
  const auto routes = [&] {
    return route(at::linear(x, gate), options, gate_noise(options, draw, tokens, experts, at::kCPU),
                 true)
        .weight;
  };
  double all_s = 0;
  double routes_s = 0;
  for (auto _ : state) {
    const double one_s = seconds_of(mixture, gate);
    const double other_s = seconds_of(routes, gate);
    all_s += one_s;
    routes_s += other_s;
    state.SetIterationTime(std::max(1e-9, one_s - other_s));
  }
  const auto rounds = static_cast<double>(state.iterations());
  state.counters["mixture_us"] = 1e6 * all_s / rounds;
  state.counters["routes_us"] = 1e6 * routes_s / rounds;
}

void add(const std::string& name, Model (*model)(), const Case& c) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { run_steps(state, model(), c); })
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime()
      ->MinTime(1.5);
}

/// Steps of two ranks, 8 images each; the time of one on rank 0, once all have begun.
void run_spread(benchmark::State& state, bool residual, std::int64_t parts) {
  constexpr int kSteps = 100;
  const std::string config =
      R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
          "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
          "zero_optimization": {"stage": 2}})";
  const auto seconds_per_step = [&](std::shared_ptr<Communicator> ranks) {
    CifarMoe shape = mixtures(residual);
    shape.expert_ranks = parts;
    Engine engine({.model = make_cifar_moe_model(shape, cifar_moe_initial_weights(shape, 0)),
                   .config = parse_config(config, "bench_cifar", 2),
                   .options = {.compute_threads = 1},
                   .communicator = ranks});
    const std::vector<Batch> batch = {
        {.inputs = at::randn({8, 3, 32, 32}), .labels = at::arange(8, at::kLong)}};
    for (int i = 0; i < kWarmupSteps; ++i) {
      engine.train_step(batch);
    }
    const Stopwatch watch;
    for (int i = 0; i < kSteps; ++i) {
      engine.train_step(batch);
    }
    return watch.elapsed_s() / kSteps;
  };
  for (auto _ : state) {
    state.SetIterationTime(on_ranks(2, seconds_per_step).front());
  }
}

template <bool kResidual>
Model with_mixtures() {
  const CifarMoe shape = mixtures(kResidual);
  return make_cifar_moe_model(shape, cifar_moe_initial_weights(shape, 0));
}

void register_all() {
  for (const std::int64_t batch : {4, 16}) {
    for (const int threads : {1, 2}) {
      for (const int stage : {0, 3}) {
        for (const Overlap overlap : {Overlap::kOff, Overlap::kOffload}) {
          const Case c = {batch, threads, stage, overlap};
          const std::string where = fmt::format("batch_{}/threads_{}/stage_{}/{}", batch, threads,
                                                stage, name_of(overlap));
          add("cifar/" + where, [] { return make_cifar_model(cifar_initial_weights(0)); }, c);
          add("moe/standard/" + where, with_mixtures<false>, c);
          add("moe/residual/" + where, with_mixtures<true>, c);
        }
      }
    }
  }
  for (const bool residual : {false, true}) {
    for (const std::int64_t parts : {1, 2}) {
      benchmark::RegisterBenchmark(
          fmt::format("spread/{}/over_{}", residual ? "residual" : "standard", parts).c_str(),
          [=](benchmark::State& state) { run_spread(state, residual, parts); })
          ->Unit(benchmark::kMicrosecond)
          ->UseManualTime()
          ->Iterations(5);
    }
  }
  for (const auto& [name, tokens, width, experts, k] :
       {std::tuple("cifar", 16, 84, 2, 1), std::tuple("8_experts_top_2", 2048, 512, 8, 2)}) {
    benchmark::RegisterBenchmark(
        fmt::format("ways/{}", name).c_str(),
        [=](benchmark::State& state) { run_ways(state, tokens, width, experts, k); })
        ->Unit(benchmark::kMicrosecond)
        ->UseManualTime();
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  tandem::reexec_with_tuned_env();
  Suite suite(argc, argv, "training steps of the CIFAR-10 models, dense and with experts");
  suite.begin();
  add_torch_context();
  register_all();
  return suite.run();
}
