// examples/finetune_zero3.cpp — fine-tunes a causal language model with ZeRO-3 and the optimizer on the CPU.
//
//   finetune_zero3 --model_name DIR --dataset_name data.json --lr 1e-5 --batch_size 4 --output_dir out
//   finetune_zero3                     the demo: a small model, random weights, the project's own sentences
//
// Read main() downward: flags -> model and data -> config -> engine -> loop -> model/ and summary.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "engine/metrics/flops.hpp"
#include "engine/metrics/metrics_writer.hpp"
#include "engine/process.hpp"
#include "engine/program.hpp"
#include "examples/support/demo.hpp"
#include "examples/support/finetune_config.hpp"
#include "examples/support/finetune_flags.hpp"
#include "models/alpaca_dataset.hpp"
#include "models/causal_lm.hpp"
#include "models/pretrained.hpp"
#include "runtime/machine.hpp"
#include "runtime/trace.hpp"

namespace tandem {
namespace {

volatile std::sig_atomic_t g_signal = 0;

/// The first SIGINT or SIGTERM lets the running step finish; the second one kills, as the default does.
void finish_on_signals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = [](int number) { g_signal = number; };
    action.sa_flags = SA_RESETHAND;
    sigaction(signal, &action, nullptr);
  }
}

StepMetrics metrics_of(const StepResult& result, const HfConfig& shape, const Engine& engine,
                       const FinetuneFlags& flags, double epoch) {
  const FlopShape flops = {.parameters = engine.parameter_count(),
                           .layers = shape.num_hidden_layers,
                           .hidden = shape.hidden_size,
                           .activation_checkpointing = flags.activation_checkpointing};
  return {
      .step = result.step,
      .epoch = epoch,
      .loss = result.loss,
      .lr = result.learning_rate,
      .grad_norm = result.verdict.norm.value,
      .tokens = result.tokens,
      .step_time_s = result.step_time_s,
      .tokens_per_s = static_cast<double>(result.tokens) / result.step_time_s,
      .tflops = example_tflops(flops, result.sequences, result.sequence_length, result.step_time_s),
      .overlap_efficiency = result.overlap_efficiency,
      .exposed_optimizer_s = result.exposure.optimizer_s,
      .exposed_gather_s = result.exposure.gather_s,
      .exposed_reduce_s = result.exposure.reduce_s,
      .exposed_data_s = result.exposure.data_s,
      .verdict = std::string(name_of(result.verdict.outcome)),
      .peak_host_bytes = static_cast<std::int64_t>(machine::peak_rss_bytes())};
}

int finetune(FinetuneFlags flags) {
  if (flags.trace) {
    trace::enable();
  }
  const bool demo = flags.model_name.empty();
  if (demo) {
    apply_demo_defaults(flags);
  }
  make_output_dir(flags.output_dir);

  // Model and data.
  const Pretrained pretrained = Pretrained::open(flags.model_name, demo, flags.seed);
  const auto dataset = std::make_shared<AlpacaDataset>(
      resolve_dataset_file(flags.dataset_name), pretrained.tokenizer(),
      AlpacaOptions{.max_length = flags.max_length, .percentage = flags.dataset_percentage});

  // The DeepSpeed config, with the flags that stand for its keys.
  Config config = finetune_config(flags);
  const std::int64_t total_steps = total_steps_of(flags, config, dataset->size());
  const auto without_engine_bytes = static_cast<std::int64_t>(machine::rss_bytes());
  Engine engine({.model = pretrained.model(),
                 .config = config,
                 .options = engine_options(flags),
                 .dataset = dataset,
                 .epochs = 0,
                 .seed = flags.seed,
                 .learning_rate = learning_rate_of(flags, config, total_steps)});

  MetricsWriter metrics({.output_dir = flags.output_dir,
                         .total_steps = total_steps,
                         .log_interval = flags.log_interval,
                         .warmup_steps = flags.warmup_steps,
                         .tensorboard = flags.tensorboard,
                         .progress = progress_mode_of(flags.progress)});
  metrics.write_resolved_config(resolved_json(config));
  for (const std::string& line : describe_run(flags, config, pretrained, engine, *dataset)) {
    metrics.note(line);
  }
  if (demo) {
    show_samples(metrics, "before training", pretrained, engine, *dataset);
  }

  // Training.
  finish_on_signals();
  const auto steps_per_epoch =
      static_cast<double>(dataset->size()) / static_cast<double>(config.batch.train_batch_size);
  for (std::int64_t step = 0; step < total_steps && g_signal == 0; ++step) {
    const std::optional<StepResult> result = engine.train_step();
    const double epoch = static_cast<double>(step + 1) / steps_per_epoch;
    metrics.write(metrics_of(*result, pretrained.config(), engine, flags, epoch));
  }

  // What remains of it: model/, summary, trace.
  engine.drain();
  if (demo) {
    show_samples(metrics, "after training", pretrained, engine, *dataset);
  }
  pretrained.save(engine, std::filesystem::path(flags.output_dir) / "model",
                  torch_dtype_name(config.precision()));
  RunSummary summary = metrics.summary();
  complete_summary(summary, flags, config, engine, without_engine_bytes);
  metrics.finish(summary);
  std::string text = summary_text(summary);
  text.pop_back();  // note() ends the line
  metrics.note(text);
  if (flags.trace) {
    trace::write_chrome_json(flags.output_dir + "/trace.json.gz");
  }
  metrics.note("artefacts in " + flags.output_dir);
  return g_signal == 0 ? 0 : 128 + g_signal;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::tune_process(argv);
  return tandem::guarded_main([&] {
    const auto flags = tandem::parse_finetune_flags(argc, argv);
    return flags ? tandem::finetune(*flags) : 0;
  });
}
