// examples/cifar10.cpp — the DeepSpeed CIFAR-10 example: a small net, any ZeRO stage, fp32, fp16 or
// bf16.
//
//   cifar10 --dtype fp32 --epochs 2 --data_dir cifar-10-batches-bin
//   cifar10 --moe --num-experts 2 4 --mlp-type residual      PR-MoE, at every stage
//   cifar10                            the example's defaults, on fetched data or a generated set
//
// Read cifar10() downward: flags -> data -> config -> engine -> epochs -> accuracy, images,
// weights and summary.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/config/config.hpp"
#include "engine/config/unknown_keys.hpp"
#include "engine/data/loader.hpp"
#include "engine/device/device_choice.hpp"
#include "engine/distributed/process_group.hpp"
#include "engine/engine.hpp"
#include "engine/metrics/flops.hpp"
#include "examples/support/cifar/accuracy.hpp"
#include "examples/support/cifar/flags.hpp"
#include "examples/support/cifar/report.hpp"
#include "examples/support/folder/output_folder.hpp"
#include "examples/support/folder/run_room.hpp"
#include "examples/support/metrics_writer.hpp"
#include "examples/support/process/reexec.hpp"
#include "examples/support/program.hpp"
#include "examples/support/run_checkpoints.hpp"
#include "examples/support/run_evaluation.hpp"
#include "examples/support/run_status.hpp"
#include "examples/support/run_trace.hpp"
#include "examples/support/training_run.hpp"
#include "models/cifar/dataset.hpp"
#include "models/cifar/moe_net.hpp"
#include "models/cifar/net.hpp"
#include "models/cifar/records.hpp"
#include "models/save_weights.hpp"
#include "runtime/supervision/describe.hpp"
#include "runtime/supervision/status_server.hpp"
#include "runtime/util/one_line.hpp"

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

/// Optimizer steps of one epoch on this rank's share of `records`.
std::int64_t steps_per_epoch(const Config& config, std::int64_t records) {
  const std::int64_t batches =
      batches_per_epoch(records, {.sampler = {.world_size = static_cast<int>(config.world_size)},
                                  .micro_batch = config.batch.micro_batch_size,
                                  .accumulation = config.batch.accumulation_steps,
                                  .drop_last = config.dataloader_drop_last});
  return std::max<std::int64_t>(1, batches / config.batch.accumulation_steps);
}

/// Steps until the end or a signal, each epoch evaluated on the test set; the example's line every
/// --log-interval of an epoch's mini-batches.
void train(const CifarFlags& flags, Engine& engine, MetricsWriter& metrics,
           RunEvaluation& evaluation, RunCheckpoints& checkpoints, std::int64_t total_steps,
           std::int64_t epoch_steps) {
  const double flops_per_image = model_flops_per_token(engine.model(), 1);
  RunningLoss running(static_cast<std::int64_t>(flags.log_interval));
  bool go_on = true;
  while (engine.global_steps() < total_steps && go_on) {
    const std::optional<StepResult> result = checkpoints.train_step();
    if (!result) {
      break;
    }
    const std::int64_t step = result->step - 1;
    const double tflops =
        1e-12 * flops_per_image * static_cast<double>(result->sequences) / result->step_time_s;
    metrics.write(metrics_of(
        *result, static_cast<double>(step + 1) / static_cast<double>(epoch_steps), tflops));
    const std::int64_t epoch = step / epoch_steps;
    const std::int64_t number = step % epoch_steps;
    if (running.add(epoch, number, result->loss)) {
      metrics.note(example_loss_line(epoch, number, running.mean()));
    }
    go_on = evaluation.after(result->step);
    go_on = checkpoints.after(*result) && go_on;
  }
  checkpoints.finish();
  engine.drain();
}

/// Accuracy over the whole test set, every rank its share; images and weights.
void evaluate(const CifarFlags& flags, Engine& engine, MetricsWriter& metrics,
              const CifarImages& images) {
  const ImageLogits logits = [&](const at::Tensor& x) { return engine.logits({.inputs = x}); };
  const RankShare share = {.rank = engine.rank(), .world_size = engine.world_size()};
  const ClassCounts counts =
      sum_over_ranks(count_share(logits, images, share, kTestBatch),
                     [&](auto numbers) { return engine.sum_over_ranks(std::move(numbers)); });
  for (const std::string& line : example_accuracy_lines(counts)) {
    metrics.note(line);
  }
  metrics.report("predictions.png", [&] {
    const std::filesystem::path folder = flags.output_dir;
    write_predictions(engine.rank() == 0 ? folder / "predictions.png" : "", images, logits);
  });
}

int cifar10(CifarFlags flags) {
  begin_trace(flags);
  end_on_signals();
  const std::shared_ptr<Communicator> ranks = ProcessGroup::from_environment(flags.reduction);
  const std::vector<OwnFolder> own = own_folders(flags.output_dir);
  go_on_after_restart(flags, *ranks);
  keep_global_batch(flags, *ranks);
  const Config config = cifar_config(flags, ranks->world_size());
  CifarData data = open_cifar(flags.data_dir);
  const auto train_images = std::make_shared<const CifarImages>(std::move(data.train));
  const auto test_images = std::make_shared<const CifarImages>(std::move(data.test));
  const std::int64_t epoch_steps = steps_per_epoch(config, train_images->size());
  const std::int64_t total_steps =
      flags.steps > 0 ? flags.steps : steps_of_epochs(flags.epochs, epoch_steps);

  flags.save_every = static_cast<double>(steps_of(flags.save_every, total_steps));
  require_traced_steps(flags, 0, total_steps);
  Model model = model_of(flags);
  if (flags.output_dir.empty()) {
    flags.output_dir = fresh_output_dir("cifar10");
  }
  RunPlan plan = plan_run(model, config, engine_options(flags, choose_device(flags.device)),
                          {.records = train_images->size()}, run_limits(flags), *ranks);
  const Disks disks = find_disks(*ranks, flags.output_dir);
  RunRoom room = plan_disk(plan, model, flags, config, sizeof(float), 0, *ranks, disks);
  plan.require_fit();
  const TakenFolders folders = take_output_dir(flags, *ranks, disks, {"model"});
  Engine engine(
      {.model = std::move(model),
       .config = config,
       .plan = plan,
       .dataset = std::make_shared<CifarDataset>(train_images),
       .epochs = 0,
       .seed = flags.seed,
       .prefetch = {.depth = static_cast<std::size_t>(flags.prefetch), .workers = flags.workers},
       .parameter_groups = std::vector<ParameterGroup>(flags.moe_param_group ? 2 : 1),
       .communicator = ranks});
  const DumpOnSignal dump_on_signal(engine.loop(), SIGQUIT, waits_file(flags, engine.rank()));
  const ResumedRun resumed = resume_run(flags, engine, *ranks);
  require_traced_steps(flags, engine.global_steps(), total_steps);
  MetricsOptions reports = metrics_options(flags, engine, total_steps);
  reports.log_interval = 0;
  reports.has_disk = disks.is_first_of_its_disk(static_cast<std::uint32_t>(engine.rank()));
  MetricsWriter metrics(std::move(reports));
  report_by(metrics, engine);
  const auto status = serve_status(engine.loop(), flags.status_socket, metrics, engine.rank());
  metrics.write_config(resolved_json(config), report_lines(config));
  if (engine.rank() == 0) {
    write_plan(plan, flags.output_dir);
  }
  metrics.note("data     " + data.description);
  if (const std::string note = unknown_keys_note(config); !note.empty()) {
    metrics.note("note     " + one_line(note));
  }
  metrics.note(describe(flags, config, engine));
  metrics.note(cores_line(engine.cores(), flags.engine.pin_cores));
  for (const std::string& line : plan.placement_lines()) {
    metrics.note(line);
  }
  if (const std::string line = disks_line(disks); !line.empty()) {
    metrics.note(line);
  }
  for (const std::string& line : resumed.lines) {
    metrics.note(line);
  }

  RunEvaluation evaluation({.dataset = std::make_shared<CifarDataset>(test_images),
                            .args = {.micro_batch = kTestBatch},
                            .every = epoch_steps},
                           engine, metrics);
  evaluation.restore(resumed.client_state);
  RunCheckpoints checkpoints(flags, engine, metrics, room, {}, [&] { return evaluation.state(); });
  train(flags, engine, metrics, evaluation, checkpoints, total_steps, epoch_steps);
  finish_reports(metrics, engine);
  end_trace();
  std::puts("Finished Training");  // by every rank, as the example does
  evaluate(flags, engine, metrics, *test_images);
  const std::string model_folder = flags.output_dir + "/model";
  checkpoints.save_model(model_folder,
                         [&] { save_weights(engine, model_folder, TensorType::kF32); });
  if (engine.rank() == 0) {
    RunSummary summary = metrics.summary();
    summary.ended = checkpoints.ended(total_steps);
    complete_summary(summary, flags, config, engine, summary.tflops, plan.memory());
    metrics.finish(summary);
  }
  write_run_trace(flags, flags.moe ? "cifar10, experts" : "cifar10", engine, metrics);
  metrics.write_page();
  metrics.note(
      fmt::format("{:.0f} images/s; {}", metrics.summary().tokens_per_s, metrics.artefacts_line()));
  return checkpoints.exit_code();
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
