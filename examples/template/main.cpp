// A model, data and a loop of one's own on the engine, with an actor of the runtime beside it.
//
//   my_trainer                                one process
//   tandem launch -n 2 -- my_trainer          the same on two ranks
#include <algorithm>
#include <cstdio>
#include <memory>

#include <ATen/ATen.h>
#include <tandem/engine/initialize.hpp>
#include <tandem/engine/model/sequential.hpp>
#include <tandem/engine/model/tensor_dataset.hpp>
#include <tandem/runtime.hpp>

namespace {

// Learns y = sin(3 x). Data are two tensors: record i is row i of both.
std::shared_ptr<tandem::Dataset> data() {
  const at::Tensor x = at::linspace(-1, 1, 512).view({512, 1});
  return std::make_shared<tandem::TensorDataset>(x, at::sin(3 * x));
}

// A segment is what the engine gathers, runs and updates as one.
tandem::Model model() {
  return tandem::Sequential(/*seed=*/1)
      .add("in", {tandem::linear(1, 64), tandem::activation(at::tanh)})
      .add("out", {tandem::linear(64, 1)})
      .build(tandem::mean_squared_error());
}

// Any DeepSpeed JSON, also as a path.
const char* const kConfig = R"({
  "train_micro_batch_size_per_gpu": 32,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0}},
  "zero_optimization": {"stage": 2}
})";

struct EpochLoss {
  double value;
};
struct Best {
  using Reply = double;
};

/// Keeps the least loss of all epochs.
struct Losses : tandem::Actor<Losses, EpochLoss, Best> {
  Losses() : Actor("losses") {}
  void handle(EpochLoss m) { best = std::min(best, m.value); }
  double handle(Best) { return best; }
  double best = 1e9;
};

tandem::Task<double> best_of(Losses::AddressType losses) { co_return co_await losses.ask(Best{}); }

void train() {
  auto [engine, optimizer, loader, scheduler] = tandem::initialize(
      {.model = model(), .config = tandem::ConfigSource::of_text(kConfig), .dataset = data()});
  tandem::EventLoop loop({.name = "losses"});
  tandem::Scope scope(loop, "losses");
  Losses& losses = scope.start<Losses>();

  for (int epoch = 0; epoch < 40; ++epoch) {
    double loss = 0;
    for (auto& batch : loader) {
      const auto micro_loss = engine.forward(batch);
      engine.backward(micro_loss);
      if (const auto step = engine.step()) {
        loss = step->loss;
      }
    }
    (void)losses.address().try_send(EpochLoss{loss});
  }

  const double best = loop.run(&best_of, losses.address());
  loop.run(&tandem::Scope::join, &scope);
  const at::Tensor x = at::full({1, 1}, 0.5);
  const float y = engine.logits({.inputs = x}).item<float>();
  if (engine.rank() == 0) {
    std::printf("least loss %.5f; sin(1.5) is 0.997, the model says %.3f\n", best,
                static_cast<double>(y));
  }
}

}  // namespace

int main() {
  try {
    train();
    return 0;
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
