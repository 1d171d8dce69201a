#include "trainer/cifar/run.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/metrics/flops.hpp"
#include "models/cifar/dataset.hpp"
#include "models/cifar/moe_net.hpp"
#include "models/cifar/net.hpp"
#include "trainer/cifar/accuracy.hpp"
#include "trainer/cifar/report.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kTestBatch = 100;

std::string describe(const CifarFlags& flags, const Config& config, const Engine& engine) {
  return fmt::format(
      "engine   {} parameters, {}, ZeRO stage {}, clipping {}, overlap {}, batch {} = {} per "
      "micro-batch x {} accumulation x {} rank{}, {} compute threads, {} optimizer threads",
      engine.parameter_count(), name_of(config.precision()), config.zero.stage,
      config.gradient_clipping, name_of(flags.engine.overlap), config.batch.train_batch_size,
      config.batch.micro_batch_size, config.batch.accumulation_steps, config.world_size,
      config.world_size == 1 ? "" : "s", engine.compute_threads(), engine.optimizer_threads());
}

/// The example's net, with mixtures of experts if --moe says so.
Model model_of(const CifarFlags& flags) {
  const bool is_fresh = flags.init_weights.empty();
  if (!flags.moe) {
    return make_cifar_model(is_fresh ? cifar_initial_weights(flags.seed)
                                     : cifar_weights_of(flags.init_weights));
  }
  const CifarMoe moe = cifar_moe_of(flags);
  return make_cifar_moe_model(
      moe, is_fresh ? cifar_moe_initial_weights(moe, flags.seed)
                    : cifar_weights_of(flags.init_weights, cifar_moe_parameters(moe)));
}

}  // namespace

TrainerArgs cifar_args(const CifarFlags& flags, const Config& config,
                       std::shared_ptr<const CifarImages> images, const std::string& description) {
  TrainerArgs args = {
      .model = model_of(flags),
      .config = config,
      .dataset = std::make_shared<CifarDataset>(images),
      .length = run_length(config, images->size(), flags.steps, flags.epochs),
      .prefetch = {.depth = static_cast<std::size_t>(flags.prefetch), .workers = flags.workers},
      .parameter_groups = std::vector<ParameterGroup>(flags.moe_param_group ? 2 : 1)};
  args.reports = {.name = flags.moe ? "cifar10, experts" : "cifar10",
                  .has_own_lines = true,
                  .prints_summary = false,
                  .rate_of = "images"};
  args.reports.describe = [&flags, &config, description](const Engine& engine) {
    return std::vector<std::string>{"data     " + description, describe(flags, config, engine),
                                    cores_line(engine.cores(), flags.engine.pin_cores)};
  };
  const double flops_per_image = model_flops_per_token(args.model, 1);
  args.reports.tflops = [flops_per_image](const StepResult& result, const Engine&) {
    return 1e-12 * flops_per_image * static_cast<double>(result.sequences) / result.step_time_s;
  };
  return args;
}

EvaluationOptions cifar_evaluation(std::shared_ptr<const CifarImages> images,
                                   const RunLength& length) {
  return {.dataset = std::make_shared<CifarDataset>(std::move(images)),
          .args = {.micro_batch = kTestBatch},
          .every = length.per_epoch,
          .at_end = false};
}

void train_cifar(const CifarFlags& flags, Trainer& trainer) {
  RunningLoss running(static_cast<std::int64_t>(flags.log_interval));
  trainer.train([&](const StepResult& result) {
    const std::int64_t epoch = (result.step - 1) / trainer.length().per_epoch;
    const std::int64_t number = (result.step - 1) % trainer.length().per_epoch;
    if (running.add(epoch, number, result.loss)) {
      trainer.metrics().note(example_loss_line(epoch, number, running.mean()));
    }
  });
}

void report_accuracy(const CifarFlags& flags, Trainer& trainer, const CifarImages& images) {
  Engine& engine = trainer.engine();
  const ImageLogits logits = [&](const at::Tensor& x) { return engine.logits({.inputs = x}); };
  const RankShare share = {.rank = engine.rank(), .world_size = engine.world_size()};
  const ClassCounts counts =
      sum_over_ranks(count_share(logits, images, share, kTestBatch),
                     [&](auto numbers) { return engine.sum_over_ranks(std::move(numbers)); });
  for (const std::string& line : example_accuracy_lines(counts)) {
    trainer.metrics().note(line);
  }
  trainer.metrics().report("predictions.png", [&] {
    const std::filesystem::path folder = flags.output_dir;
    write_predictions(engine.rank() == 0 ? folder / "predictions.png" : "", images, logits);
  });
}

}  // namespace tandem
