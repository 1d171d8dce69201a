// examples/cifar10.cpp — the DeepSpeed CIFAR-10 example: a small net, any ZeRO stage, fp32, fp16 or
// bf16.
//
//   cifar10 --dtype fp32 --epochs 2 --data_dir cifar-10-batches-bin
//   cifar10 --moe --num-experts 2 4 --mlp-type residual      PR-MoE, at every stage
//   cifar10                            the example's defaults, on fetched data or a generated set
//
// Read cifar10() downward: config and data -> plan, folder and engine (Trainer) -> epochs ->
// accuracy, images, weights and summary.
#include <cstdio>
#include <memory>
#include <utility>

#include "engine/config/config.hpp"
#include "models/cifar/records.hpp"
#include "models/save_weights.hpp"
#include "trainer/cifar/flags.hpp"
#include "trainer/cifar/run.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/reexec.hpp"
#include "trainer/trainer.hpp"
#include "trainer/training_run.hpp"

namespace tandem {
namespace {

int cifar10(CifarFlags flags) {
  StartedRun started = start_run(flags);
  const Config config = cifar_config(flags, started.ranks->world_size());
  CifarData data = open_cifar(flags.data_dir);
  const auto train_images = std::make_shared<const CifarImages>(std::move(data.train));
  const auto test_images = std::make_shared<const CifarImages>(std::move(data.test));
  if (flags.output_dir.empty()) {
    flags.output_dir = fresh_output_dir("cifar10");
  }
  Trainer trainer(flags, std::move(started),
                  cifar_args(flags, config, train_images, data.description));
  trainer.evaluate_on(cifar_evaluation(test_images, trainer.length()));
  train_cifar(flags, trainer);
  std::puts("Finished Training");  // by every rank, as the example does
  report_accuracy(flags, trainer, *test_images);
  trainer.save_model(
      [&] { save_weights(trainer.engine(), trainer.model_folder(), TensorType::kF32); });
  return trainer.finish();
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env();
  return tandem::guarded_main([&] {
    auto flags = tandem::parse_cifar_flags(argc, argv);
    return flags ? tandem::cifar10(std::move(*flags)) : 0;
  });
}
