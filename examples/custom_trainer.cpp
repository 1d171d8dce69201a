// examples/custom_trainer.cpp — a model and data of one's own on the engine, in one file: what an
// embedding project writes.
//
//   custom_trainer [deepspeed.json]                       one process
//   ./tandem launch -n 2 -- custom_trainer ds.json        the same on two ranks
//
// Two spirals of points are told apart by a small network. Read main() downward: model, data,
// initialize, DeepSpeed's loop.
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <string>

#include <ATen/ATen.h>
#include <tandem/engine/initialize.hpp>
#include <tandem/engine/model/sequential.hpp>
#include <tandem/engine/model/tensor_dataset.hpp>
#include <tandem/runtime/util/error.hpp>

namespace {

constexpr std::int64_t kHidden = 64;

const char* const kConfig = R"({
  "train_micro_batch_size_per_gpu": 16,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.01}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 20}},
  "zero_optimization": {"stage": 2}
})";

/// Three segments, each of which the engine gathers, runs and updates as one.
tandem::Model make_model() {
  using tandem::activation, tandem::linear;
  return tandem::Sequential(/*seed=*/1)
      .add("first", {linear(2, kHidden), activation(at::tanh)})
      .add("second", {linear(kHidden, kHidden), activation(at::tanh)})
      .add("classifier", {linear(kHidden, 2)})
      .build(tandem::cross_entropy());
}

struct Points {
  at::Tensor places;  // [N, 2]
  at::Tensor arms;    // [N]: 0 or 1
};

/// Points on the arms of two spirals.
Points spirals(std::int64_t count) {
  Points points{at::empty({count, 2}), at::empty({count}, at::kLong)};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t arm = i % 2;
    const double turn = 0.5 + 5.5 * static_cast<double>(i) / static_cast<double>(count);
    const double angle = turn + std::numbers::pi * static_cast<double>(arm);
    points.places[i][0] = turn / 6 * std::cos(angle);
    points.places[i][1] = turn / 6 * std::sin(angle);
    points.arms[i] = arm;
  }
  return points;
}

int train(const std::string& config_file) {
  const Points points = spirals(1000);
  const auto data = std::make_shared<tandem::TensorDataset>(points.places, points.arms);
  auto config = [&]() -> tandem::ConfigSource {
    return config_file.empty() ? tandem::ConfigSource::of_text(kConfig) : config_file;
  };
  auto [engine, optimizer, loader, scheduler] =
      tandem::initialize({.model = make_model(), .config = config(), .dataset = data});

  for (int epoch = 0; epoch < 30; ++epoch) {
    double loss = 0;
    for (auto& batch : loader) {
      const auto micro_loss = engine.forward(batch);
      engine.backward(micro_loss);
      if (const auto step = engine.step()) {
        loss = step->loss;
      }
    }
    if (engine.rank() == 0 && epoch % 5 == 4) {
      std::printf("epoch %2d  loss %.4f  lr %.2e  %lld updates\n", epoch + 1, loss,
                  scheduler.get_last_lr(), static_cast<long long>(optimizer.steps()));
    }
  }

  // All ranks look: with sharded weights a forward is everybody's.
  const at::Tensor right = engine.logits({.inputs = points.places}).argmax(1) == points.arms;
  if (engine.rank() == 0) {
    std::printf("%lld of %lld points told apart\n",
                static_cast<long long>(right.sum().item<std::int64_t>()),
                static_cast<long long>(right.numel()));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? argv[1] : "");
  } catch (const tandem::Error& error) {  // wrong input, a model that does not fit, a lost peer
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
