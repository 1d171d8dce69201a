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
#include <random>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <tandem/engine/initialize.hpp>
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

// A segment is a plain function of weights and activations; the engine drives its forward and its
// backward.

/// [B, in] -> [B, out]
class Layer : public tandem::Segment {
 public:
  at::Tensor forward(const tandem::SegmentContext& context,
                     const at::Tensor& input) const override {
    const at::Tensor x = input.defined() ? input : context.batch.inputs;
    return at::tanh(at::linear(x, context.weights[0]->value, context.weights[1]->value));
  }
};

/// [B, H] -> the mean loss, or the logits [B, 2]
class Classifier : public tandem::Segment {
 public:
  at::Tensor forward(const tandem::SegmentContext& context,
                     const at::Tensor& input) const override {
    const at::Tensor logits =
        at::linear(input, context.weights[0]->value, context.weights[1]->value);
    return context.head_output == tandem::HeadOutput::kLogits
               ? logits
               : at::cross_entropy_loss(logits, context.batch.labels);
  }
};

/// Uniform within 1 / sqrt(fan-in), from the parameter's name: every rank draws the part that it
/// owns.
void initial_value(const tandem::ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                   float* out) {
  const double bound = 1 / std::sqrt(static_cast<double>(parameter.shape.back()));
  std::mt19937_64 random(std::hash<std::string>()(parameter.name));
  random.discard(static_cast<unsigned long long>(begin));
  for (std::int64_t i = begin; i < end; ++i) {
    *out++ = static_cast<float>(bound * (2 * std::ldexp(static_cast<double>(random()), -64) - 1));
  }
}

tandem::Model make_model() {
  tandem::Model model;
  const auto add = [&](const std::string& name, std::int64_t in, std::int64_t out,
                       std::shared_ptr<const tandem::Segment> run) {
    const std::size_t unit = model.units.size();
    model.units.push_back({name, {{name + ".weight", {out, in}}, {name + ".bias", {out}}}});
    model.segments.push_back({name, {{unit, 0}, {unit, 1}}, std::move(run)});
  };
  add("first", 2, kHidden, std::make_shared<Layer>());
  add("second", kHidden, kHidden, std::make_shared<Layer>());
  add("classifier", kHidden, 2, std::make_shared<Classifier>());
  model.source = initial_value;
  return model;
}

/// Point i of 1000: on one arm or the other of two spirals.
class Spirals : public tandem::Dataset {
 public:
  [[nodiscard]] std::int64_t size() const override { return 1000; }
  [[nodiscard]] tandem::HostBatch collate(std::span<const std::int64_t> indices) const override {
    tandem::HostBatch batch;
    batch.rows = static_cast<std::int64_t>(indices.size());
    batch.tokens = batch.rows;
    batch.feature_shape = {batch.rows, 2};
    for (const std::int64_t i : indices) {
      const std::int64_t arm = i % 2;
      const double turn = 0.5 + 5.5 * static_cast<double>(i) / static_cast<double>(size());
      const double angle = turn + 3.14159265 * static_cast<double>(arm);
      batch.features.push_back(static_cast<float>(turn / 6 * std::cos(angle)));
      batch.features.push_back(static_cast<float>(turn / 6 * std::sin(angle)));
      batch.labels.push_back(arm);
    }
    return batch;
  }
};

int train(const std::string& config_file) {
  const auto data = std::make_shared<Spirals>();
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
  std::vector<std::int64_t> all(static_cast<std::size_t>(data->size()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::int64_t>(i);
  }
  const tandem::HostBatch points = data->collate(all);
  const at::Tensor x = at::tensor(points.features).view({-1, 2});
  const at::Tensor right = engine.logits({.inputs = x}).argmax(1) == at::tensor(points.labels);
  if (engine.rank() == 0) {
    std::printf("%lld of %zu points told apart\n",
                static_cast<long long>(right.sum().item<std::int64_t>()), all.size());
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
