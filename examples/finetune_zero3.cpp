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
#include <vector>

#include "engine/config/config.hpp"
#include "engine/config/unknown_keys.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/distributed/process_group.hpp"
#include "engine/engine.hpp"
#include "engine/metrics/flops.hpp"
#include "examples/support/finetune/config.hpp"
#include "examples/support/finetune/data.hpp"
#include "examples/support/finetune/demo.hpp"
#include "examples/support/finetune/evaluation.hpp"
#include "examples/support/finetune/flags.hpp"
#include "examples/support/finetune/start_clock.hpp"
#include "examples/support/folder/output_folder.hpp"
#include "examples/support/folder/run_room.hpp"
#include "examples/support/metrics_writer.hpp"
#include "examples/support/process/reexec.hpp"
#include "examples/support/program.hpp"
#include "examples/support/run_checkpoints.hpp"
#include "examples/support/run_status.hpp"
#include "examples/support/run_trace.hpp"
#include "examples/support/training_run.hpp"
#include "models/causal_lm.hpp"
#include "models/io/same_files.hpp"
#include "models/pretrained.hpp"
#include "models/save_weights.hpp"
#include "runtime/supervision/describe.hpp"
#include "runtime/supervision/status_server.hpp"
#include "runtime/util/one_line.hpp"

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

/// The type of model/: --save_dtype, else the one in which the run computes.
TensorType saved_type(const FinetuneFlags& flags, const Config& config) {
  return type_by_name(flags.save_dtype).value_or(*type_by_name(name_of(config.precision())));
}

int finetune(FinetuneFlags flags) {
  StartClock start;
  start.mark("program");
  begin_trace(flags);
  const bool demo = flags.model_name.empty();
  if (demo) {
    apply_demo_defaults(flags);
  }
  end_on_signals();
  const std::shared_ptr<Communicator> ranks = ProcessGroup::from_environment(flags.reduction);

  // Model and data.
  const Pretrained pretrained =
      Pretrained::open(flags.model_name, {.may_lack_weights = demo,
                                          .seed = flags.seed,
                                          .parts = trained_parts(flags),
                                          .adapters_from = flags.lora_from,
                                          .add_tokens = flags.add_tokens});
  std::vector<std::string> saved = {pretrained.lora().any() ? "adapter" : "model"};
  const std::string model_folder = flags.output_dir + "/" + saved.front();
  if (flags.eval.keep_best) {
    saved.push_back(saved.front() + "-best");
  }
  pretrained.check_saves_elsewhere(model_folder);
  start.mark("model");
  const FinetuneData data = open_data(flags, pretrained.tokenizer_folder(), pretrained.tokenizer());
  const std::int64_t records = data.dataset->size();
  start.mark("data");

  // The DeepSpeed config, with the flags that stand for its keys.
  const DeviceKind device = choose_device(flags.device);
  const std::vector<OwnFolder> own = own_folders(flags.output_dir);
  go_on_after_restart(flags, *ranks);
  keep_global_batch(flags, *ranks);
  Config config =
      finetune_config(flags, device, ranks->world_size(),
                      {.hidden_size = pretrained.config().hidden_size, .records = records});
  require_rate_and_batch(flags, config);
  const RunLength length = run_length(flags, config, records);
  flags.save_every = static_cast<double>(steps_of(flags.save_every, length.steps));
  require_traced_steps(flags, 0, length.steps);

  // Does it fit? Up to here nothing was allocated or written.
  Model model = pretrained.model(flags.leaf_module);
  RunPlan plan =
      plan_run(model, config, engine_options(flags, device),
               {.records = records, .length = data.longest(), .packed = data.dataset->packed()},
               run_limits(flags), *ranks);
  const std::size_t models = flags.eval.keep_best ? 2 : 1;
  const Disks disks = find_disks(*ranks, flags.output_dir);
  RunRoom room =
      plan_disk(plan, model, flags, config, models * bytes_of(saved_type(flags, config)),
                static_cast<std::int64_t>(models) * tokenizer_bytes(pretrained.tokenizer_folder()),
                *ranks, disks);
  plan.require_fit();
  const TakenFolders folders = take_output_dir(flags, *ranks, disks, saved);
  if (ranks->rank() == 0) {
    write_plan(plan, flags.output_dir);
  }
  start.mark("plan");
  SameFiles weights(*ranks, "model's weights", pretrained.weight_files());
  Engine engine({.model = std::move(model),
                 .config = config,
                 .plan = plan,
                 .dataset = data.dataset,
                 .epochs = 0,
                 .seed = flags.seed,
                 .learning_rate = learning_rate_of(flags, config, length.steps),
                 .settings = run_settings(flags, config, pretrained.lora(), length.steps),
                 .communicator = ranks});
  weights.require();
  start.mark("weights");
  const DumpOnSignal dump_on_signal(engine.loop(), SIGQUIT, waits_file(flags, engine.rank()));

  const ResumedRun resumed = resume_run(flags, engine, *ranks);
  require_traced_steps(flags, engine.global_steps(), length.steps);
  MetricsOptions reports = metrics_options(flags, engine, length.steps);
  reports.log_interval =
      flags.log_level == "DEBUG" ? 1 : steps_of(flags.log_interval, length.steps);
  reports.quiet = flags.log_level == "WARNING" || flags.log_level == "ERROR";
  reports.has_disk = disks.is_first_of_its_disk(static_cast<std::uint32_t>(engine.rank()));
  MetricsWriter metrics(std::move(reports));
  report_by(metrics, engine);
  const auto status = serve_status(engine.loop(), flags.status_socket, metrics, engine.rank());
  metrics.write_config(resolved_json(config), report_lines(config));
  for (const std::string& line : describe_run(flags, config, pretrained, engine, records)) {
    metrics.note(line);
  }
  for (const std::string& note : pretrained.notes()) {
    metrics.note(fmt::format("note     {}", one_line(note)));
  }
  if (const std::string note = unknown_keys_note(config); !note.empty()) {
    metrics.note(fmt::format("note     {}", one_line(note)));
  }
  for (const std::string& line : data.lines) {
    metrics.note(line);
  }
  metrics.note(memory_line(plan.memory()));
  for (const std::string& line : plan.placement_lines()) {
    metrics.note(line);
  }
  if (const std::string line = disks_line(disks); !line.empty()) {
    metrics.note(line);
  }
  for (const std::string& line : resumed.lines) {
    metrics.note(line);
  }
  if (demo && flags.samples) {
    show_samples(metrics, "before training", pretrained, engine, data.records);
  }

  // Training.
  RunEvaluation evaluation(
      evaluation_options(flags, config, length, data.evaluated, pretrained, engine, metrics,
                         [&](const std::string& folder) {
                           room.give_back();
                           pretrained.save(engine, folder, saved_type(flags, config),
                                           data.end_token);
                           room.hold();
                         }),
      engine, metrics);
  evaluation.restore(resumed.client_state);
  RunCheckpoints checkpoints(flags, engine, metrics, room,
                             {{"config.json", hf_config_json(pretrained.config(), "float32")}},
                             [&] { return evaluation.state(); });
  start.mark("rest");
  metrics.note(start.text());
  evaluation.at_start();
  bool go_on = true;
  while (engine.global_steps() < length.steps && go_on) {
    const std::optional<StepResult> result = checkpoints.train_step();
    if (!result) {
      break;
    }
    const double epoch = static_cast<double>(result->step) / static_cast<double>(length.per_epoch);
    metrics.write(
        metrics_of(*result, epoch, tflops_of(*result, pretrained.config(), engine, flags)));
    go_on = evaluation.after(result->step);
    go_on = checkpoints.after(*result) && go_on;
  }
  if (engine.global_steps() >= length.steps) {  // it was not interrupted
    evaluation.finish();
  }
  checkpoints.finish();

  // The run leaves model/, summary and trace.
  engine.drain();
  finish_reports(metrics, engine);
  end_trace();
  if (demo && flags.samples) {
    show_samples(metrics, "after training", pretrained, engine, data.records);
  }
  checkpoints.save_model(model_folder, [&] {
    pretrained.save(engine, model_folder, saved_type(flags, config), data.end_token);
  });
  if (engine.rank() == 0) {
    RunSummary summary = metrics.summary();
    summary.ended = checkpoints.ended(length.steps);
    const Model model = make_causal_lm(pretrained.config());
    const double model_tflops =
        1e-12 * model_flops_per_token(model, flags.max_length) * summary.tokens_per_s;
    complete_summary(summary, flags, config, engine, model_tflops, plan.memory());
    metrics.finish(summary);
    std::string text = summary_text(summary);
    text.pop_back();  // say() ends the line
    metrics.say(text);
    const std::string best =
        evaluation.best_line(flags.eval.keep_best ? model_folder + "-best" : std::string());
    if (!best.empty()) {
      metrics.say(best);
    }
  }
  write_run_trace(flags, demo ? "demo" : flags.model_name, engine, metrics);
  metrics.write_page();
  metrics.note(metrics.artefacts_line());
  return checkpoints.exit_code();
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env();
  return tandem::guarded_main([&] {
    const auto flags = tandem::parse_finetune_flags(argc, argv);
    return flags ? tandem::finetune(*flags) : 0;
  });
}
