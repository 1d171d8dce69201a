#include "trainer/trainer.hpp"

#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "engine/config/unknown_keys.hpp"
#include "engine/distributed/process_group.hpp"
#include "engine/tensors/device_choice.hpp"
#include "models/io/same_files.hpp"
#include "runtime/util/one_line.hpp"
#include "trainer/flags/engine_flags.hpp"
#include "trainer/flags/flag_values.hpp"
#include "trainer/metrics/run_status.hpp"
#include "trainer/run_trace.hpp"
#include "trainer/training_run.hpp"

namespace tandem {

StartedRun start_run(RunFlags& flags) {
  begin_trace(flags);
  end_on_signals();
  StartedRun started{.ranks = ProcessGroup::from_environment(flags.reduction)};
  started.own = own_folders(flags.output_dir);
  go_on_after_restart(flags, *started.ranks);
  keep_global_batch(flags, *started.ranks);
  return started;
}

Trainer::Trainer(RunFlags& flags, StartedRun started, TrainerArgs args)
    : flags_(flags),
      started_(std::move(started)),
      args_(std::move(args)),
      device_(choose_device(flags.device)) {
  flags_.save_every = static_cast<double>(steps_of(flags.save_every, args_.length.steps));
  require_traced_steps(flags, 0, args_.length.steps);
  if (args_.largest.records == 0) {
    args_.largest.records = args_.dataset->size();
  }
  plan();
  take_folder();
  mark("plan");
  make_engine();
  mark("weights");
  resumed_ = resume_run(flags, *engine_, *started_.ranks);
  require_traced_steps(flags, engine_->global_steps(), args_.length.steps);
  open_reports();
  print_start();
}

Trainer::~Trainer() = default;

void Trainer::mark(std::string_view part) {
  if (args_.start) {
    args_.start->mark(part);
  }
}

std::string Trainer::model_folder() const {
  return flags_.output_dir + "/" + args_.saved.folders.front();
}

void Trainer::plan() {
  Communicator& ranks = *started_.ranks;
  plan_ = plan_run(args_.model, args_.config, engine_options(flags_, device_), args_.largest,
                   run_limits(flags_), ranks);
  disks_ = find_disks(ranks, flags_.output_dir);
  const std::size_t models = args_.saved.folders.size();
  room_ = plan_disk(*plan_, args_.model, flags_, args_.config, models * args_.saved.weight_bytes,
                    static_cast<std::int64_t>(models) * args_.saved.beside_bytes, ranks, *disks_);
  plan_->require_fit();
}

void Trainer::take_folder() {
  folders_.emplace(take_output_dir(flags_, *started_.ranks, *disks_, args_.saved.folders));
}

void Trainer::make_engine() {
  SameFiles weights(*started_.ranks, "model's weights", args_.weight_files);
  engine_ = std::make_unique<Engine>(InitializeArgs{.model = std::move(args_.model),
                                                    .config = args_.config,
                                                    .plan = plan_,
                                                    .dataset = args_.dataset,
                                                    .epochs = 0,
                                                    .seed = flags_.seed,
                                                    .prefetch = args_.prefetch,
                                                    .learning_rate = args_.learning_rate,
                                                    .settings = args_.settings,
                                                    .parameter_groups = args_.parameter_groups,
                                                    .communicator = started_.ranks});
  weights.require();
  dump_on_signal_.emplace(engine_->loop(), SIGQUIT, waits_file(flags_, engine_->rank()));
}

void Trainer::open_reports() {
  const RunReports& reports = args_.reports;
  MetricsOptions options = metrics_options(flags_, *engine_, args_.length.steps);
  options.log_interval = reports.has_own_lines ? 0
                         : reports.every_step  ? 1
                                               : steps_of(flags_.log_interval, args_.length.steps);
  options.quiet = reports.quiet;
  options.has_disk = disks_->is_first_of_its_disk(static_cast<std::uint32_t>(engine_->rank()));
  metrics_.emplace(std::move(options));
  report_by(*metrics_, *engine_);
  status_ = serve_status(engine_->loop(), flags_.status_socket, *metrics_, engine_->rank());
  metrics_->write_config(resolved_json(args_.config), report_lines(args_.config));
  if (engine_->rank() == 0) {
    write_plan(*plan_, flags_.output_dir);
  }
}

void Trainer::print_start() {
  const auto note_all = [this](const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      metrics_->note(line);
    }
  };
  if (args_.reports.describe) {
    note_all(args_.reports.describe(*engine_));
  }
  if (const std::string note = unknown_keys_note(args_.config); !note.empty()) {
    metrics_->note(fmt::format("note     {}", one_line(note)));
  }
  note_all(args_.reports.lines);
  metrics_->note(memory_line(plan_->memory()));
  note_all(plan_->placement_lines());
  if (const std::string line = disks_line(*disks_); !line.empty()) {
    metrics_->note(line);
  }
  note_all(resumed_.lines);
}

void Trainer::evaluate_on(EvaluationOptions options) {
  evaluation_.emplace(std::move(options), *engine_, *metrics_);
}

void Trainer::train(const std::function<void(const StepResult&)>& after_step) {
  if (!evaluation_) {
    evaluate_on({});
  }
  evaluation_->restore(resumed_.client_state);
  checkpoints_.emplace(flags_, *engine_, *metrics_, room_, args_.checkpoint_files,
                       [this] { return evaluation_->state(); });
  if (args_.start) {
    mark("rest");
    metrics_->note(args_.start->text());
  }
  evaluation_->at_start();
  bool go_on = true;
  while (engine_->global_steps() < args_.length.steps && go_on) {
    const std::optional<StepResult> result = checkpoints_->train_step();
    if (!result) {
      break;
    }
    const double epoch =
        static_cast<double>(result->step) / static_cast<double>(args_.length.per_epoch);
    metrics_->write(metrics_of(*result, epoch,
                               args_.reports.tflops ? args_.reports.tflops(*result, *engine_) : 0));
    if (after_step) {
      after_step(*result);
    }
    go_on = evaluation_->after(result->step);
    go_on = checkpoints_->after(*result) && go_on;
  }
  if (engine_->global_steps() >= args_.length.steps) {  // it was not interrupted
    evaluation_->finish();
  }
  checkpoints_->finish();
  engine_->drain();
  finish_reports(*metrics_, *engine_);
  end_trace();
}

void Trainer::save_model(const std::function<void()>& save) {
  checkpoints_->save_model(model_folder(), save);
}

void Trainer::save_beside(const std::function<void()>& save) {
  room_.give_back();
  save();
  room_.hold();
}

void Trainer::write_summary() {
  RunSummary summary = metrics_->summary();
  summary.ended = checkpoints_->ended(args_.length.steps);
  const RunReports& reports = args_.reports;
  const double tflops = reports.model_tflops ? reports.model_tflops(summary) : summary.tflops;
  complete_summary(summary, flags_, args_.config, *engine_, tflops, plan_->memory());
  metrics_->finish(summary);
  if (!reports.prints_summary) {
    return;
  }
  std::string text = summary_text(summary);
  text.pop_back();  // say() ends the line
  metrics_->say(text);
  if (const std::string best = evaluation_->best_line(); !best.empty()) {
    metrics_->say(best);
  }
}

int Trainer::finish() {
  if (engine_->rank() == 0) {
    write_summary();
  }
  write_run_trace(flags_, args_.reports.name, *engine_, *metrics_);
  metrics_->write_page();
  const std::string rate =
      args_.reports.rate_of.empty()
          ? ""
          : fmt::format("{:.0f} {}/s; ", metrics_->summary().tokens_per_s, args_.reports.rate_of);
  metrics_->note(rate + metrics_->artefacts_line());
  return checkpoints_->exit_code();
}

}  // namespace tandem
