// examples/custom_trainer.cpp — a model and data of one's own, in one file: what an embedding
// project writes. The flags of all trainers work here: checkpoints, --resume auto, reports, traces.
//
//   custom_trainer                                            one process
//   ./tandem launch -n 2 -- custom_trainer --save_every 50    two ranks, with checkpoints
//   custom_trainer --deepspeed_config ds.json --resume auto   goes on from the last one
//
// Two spirals of points are told apart by a small network. Read main() downward: flags, model,
// data, Trainer.
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <utility>

#include <ATen/ATen.h>
#include <tandem/engine/model/sequential.hpp>
#include <tandem/engine/model/tensor_dataset.hpp>
#include <tandem/models/save_weights.hpp>
#include <tandem/trainer/program/program.hpp>
#include <tandem/trainer/trainer.hpp>

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

int train(tandem::RunFlags flags) {
  const Points points = spirals(1000);
  const auto data = std::make_shared<tandem::TensorDataset>(points.places, points.arms);
  tandem::StartedRun started = tandem::start_run(flags);
  const tandem::Config config = tandem::run_config(flags, started.ranks->world_size(), kConfig);
  const tandem::RunLength length = tandem::run_length(config, data->size(), flags.steps, 30);
  tandem::Trainer trainer(
      flags, std::move(started),
      {.model = make_model(), .config = config, .dataset = data, .length = length});
  trainer.train();

  // All ranks look: with sharded weights a forward is everybody's.
  tandem::Engine& engine = trainer.engine();
  const at::Tensor right = engine.logits({.inputs = points.places}).argmax(1) == points.arms;
  if (engine.rank() == 0) {
    std::printf("%lld of %lld points told apart\n",
                static_cast<long long>(right.sum().item<std::int64_t>()),
                static_cast<long long>(right.numel()));
  }
  trainer.save_model(
      [&] { tandem::save_weights(engine, trainer.model_folder(), tandem::TensorType::kF32); });
  return trainer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  return tandem::guarded_main([&] {  // wrong input, a model that does not fit, a lost peer
    tandem::RunFlags flags;
    flags.output_dir = "runs/spirals";
    flags.log_interval = 0.1;  // of the run
    const bool goes_on =
        tandem::parse_trainer_flags("Tells two spirals of points apart.", flags, argc, argv);
    return goes_on ? train(std::move(flags)) : 0;
  });
}
