// examples/finetune_zero3.cpp — fine-tunes a causal language model with ZeRO-3 and the optimizer on
// the CPU.
//
//   finetune_zero3 --model_name DIR --dataset_name data.json --lr 1e-5 --batch_size 4 --output_dir
//   out finetune_zero3                     the demo: a small model, random weights, the project's
//   own sentences
//
// Read main() downward: flags -> model and data -> config -> memory plan -> engine -> loop ->
// model/ and summary.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/config/config.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/distributed/process_group.hpp"
#include "engine/engine.hpp"
#include "engine/metrics/flops.hpp"
#include "examples/support/demo.hpp"
#include "examples/support/finetune_config.hpp"
#include "examples/support/finetune_flags.hpp"
#include "examples/support/metrics_writer.hpp"
#include "examples/support/program.hpp"
#include "examples/support/reexec.hpp"
#include "examples/support/run_checkpoints.hpp"
#include "examples/support/training_run.hpp"
#include "models/causal_lm.hpp"
#include "models/data/alpaca_dataset.hpp"
#include "models/pretrained.hpp"
#include "models/save_weights.hpp"
#include "runtime/supervision/describe.hpp"
#include "runtime/trace.hpp"

namespace tandem {
namespace {

/// The example's figure of a step.
double tflops_of(const StepResult& result, const HfConfig& shape, const Engine& engine,
                 const FinetuneFlags& flags) {
  const FlopShape flops = {.parameters = engine.parameter_count(),
                           .layers = shape.num_hidden_layers,
                           .hidden = shape.hidden_size,
                           .activation_checkpointing = flags.engine.activation_checkpointing};
  return example_tflops(flops, result.sequences, result.sequence_length, result.step_time_s);
}

/// Of model/: --save_dtype, else what the run computes in.
TensorType saved_type(const FinetuneFlags& flags, const Config& config) {
  return type_by_name(flags.save_dtype).value_or(*type_by_name(name_of(config.precision())));
}

int finetune(FinetuneFlags flags) {
  if (flags.trace) {
    trace::enable();
  }
  const bool demo = flags.model_name.empty();
  if (demo) {
    apply_demo_defaults(flags);
  }
  end_on_signals();
  const std::shared_ptr<Communicator> ranks = ProcessGroup::from_environment();

  // Model and data.
  const Pretrained pretrained =
      Pretrained::open(flags.model_name, {.may_lack_weights = demo, .seed = flags.seed});
  const auto dataset = std::make_shared<AlpacaDataset>(
      resolve_dataset_file(flags.dataset_name), pretrained.tokenizer(),
      AlpacaOptions{.max_length = flags.max_length, .percentage = flags.dataset_percentage});

  // The DeepSpeed config, with the flags that stand for its keys.
  const DeviceKind device = choose_device(flags.device);
  keep_global_batch(flags, ranks->world_size());
  Config config = finetune_config(flags, device, ranks->world_size());
  const std::int64_t total_steps = total_steps_of(flags, config, dataset->size());

  // Does it fit? Up to here nothing was allocated or written.
  Model model = pretrained.model(flags.leaf_module);
  RunPlan plan = plan_run(model, config, engine_options(flags, device),
                          {.records = dataset->size(), .length = dataset->longest()},
                          run_limits(flags), *ranks);
  plan_disk(plan, model, flags, config, bytes_of(saved_type(flags, config)), *ranks);
  plan.require_fit();
  const std::optional<FolderLock> lock = take_output_dir(flags.output_dir, ranks->rank());
  if (ranks->rank() == 0) {
    write_plan(plan, flags.output_dir);
  }
  Engine engine({.model = std::move(model),
                 .config = config,
                 .plan = plan,
                 .dataset = dataset,
                 .epochs = 0,
                 .seed = flags.seed,
                 .learning_rate = learning_rate_of(flags, config, total_steps),
                 .communicator = ranks});
  const DumpOnSignal dump_on_signal(engine.loop(), SIGQUIT, waits_file(flags, engine.rank()));

  const std::vector<std::string> resumed = resume_run(flags, engine);
  MetricsWriter metrics({.output_dir = flags.output_dir,
                         .total_steps = total_steps,
                         .log_interval = flags.log_interval,
                         .warmup_steps = flags.warmup_steps,
                         .tensorboard = flags.tensorboard,
                         .append = engine.global_steps() > 0,
                         .progress = progress_mode_of(flags.progress),
                         .silent = engine.rank() != 0});
  metrics.write_resolved_config(resolved_json(config));
  for (const std::string& line : describe_run(flags, config, pretrained, engine, *dataset)) {
    metrics.note(line);
  }
  metrics.note(memory_line(plan.memory()));
  metrics.note(placement_line(plan));
  for (const std::string& line : resumed) {
    metrics.note(line);
  }
  if (demo && flags.samples) {
    show_samples(metrics, "before training", pretrained, engine, *dataset);
  }

  // Training.
  RunCheckpoints checkpoints(flags, engine, metrics,
                             {{"config.json", hf_config_json(pretrained.config(), "float32")}});
  const auto steps_per_epoch =
      static_cast<double>(dataset->size()) / static_cast<double>(config.batch.train_batch_size);
  bool go_on = true;
  while (engine.global_steps() < total_steps && go_on) {
    const std::optional<StepResult> result = checkpoints.train_step();
    if (!result) {
      break;
    }
    const double epoch = static_cast<double>(result->step) / steps_per_epoch;
    metrics.write(
        metrics_of(*result, epoch, tflops_of(*result, pretrained.config(), engine, flags)));
    go_on = checkpoints.after(*result);
  }
  checkpoints.finish();

  // What remains of it: model/, summary, trace.
  engine.drain();
  if (demo && flags.samples) {
    show_samples(metrics, "after training", pretrained, engine, *dataset);
  }
  const std::string model_folder = flags.output_dir + "/model";
  checkpoints.save_model(model_folder,
                         [&] { pretrained.save(engine, model_folder, saved_type(flags, config)); });
  if (engine.rank() == 0) {
    RunSummary summary = metrics.summary();
    const Model model = make_causal_lm(pretrained.config());
    const double model_tflops =
        1e-12 * model_flops_per_token(model, flags.max_length) * summary.tokens_per_s;
    complete_summary(summary, flags, config, engine, model_tflops, plan.memory());
    metrics.finish(summary);
    std::string text = summary_text(summary);
    text.pop_back();  // note() ends the line
    metrics.note(text);
    if (flags.trace) {
      metrics.report("trace.json.gz",
                     [&] { trace::write_chrome_json(flags.output_dir + "/trace.json.gz"); });
    }
    metrics.note(metrics.artefacts_line());
  }
  return checkpoints.exit_code();
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env(argv);
  return tandem::guarded_main([&] {
    const auto flags = tandem::parse_finetune_flags(argc, argv);
    return flags ? tandem::finetune(*flags) : 0;
  });
}
