#include "trainer/run_checkpoints.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/storage/file.hpp"
#include "engine/checkpoint/run_state.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/distributed/environment.hpp"
#include "engine/metrics/cut_metrics.hpp"
#include "engine/metrics/monitors.hpp"
#include "models/foreign/foreign_state.hpp"
#include "models/foreign/imported_checkpoint.hpp"
#include "runtime/util/error.hpp"
#include "trainer/flags/flag_values.hpp"
#include "trainer/folder/output_folder.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kAuto = "auto";

volatile std::sig_atomic_t g_end_signal = 0;
volatile std::sig_atomic_t g_save_asked = 0;

std::atomic<std::int64_t> g_first_signal_ms{0};  // of CLOCK_MONOTONIC
std::array<char, 256> g_answer{};                // to the first signal; empty: another rank's

/// `handler` for the signals that ask a run to end, SIGXCPU, a batch system's warning, among them.
void on_end_signals(void (*handler)(int number)) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGXCPU}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) {
      continue;
    }
    struct sigaction action = {};
    action.sa_handler = handler;
    sigaction(signal, &action, nullptr);
  }
}

// The functions that follow are those that a signal handler may call.

void say_at_once(std::string_view line) { (void)!::write(STDERR_FILENO, line.data(), line.size()); }

void say_and_end(int number) {
  constexpr std::string_view kLines[] = {
      "error: [signal] SIGHUP came before the first step; nothing was trained or saved\n",
      "error: [signal] SIGINT came before the first step; nothing was trained or saved\n",
      "error: [signal] SIGTERM came before the first step; nothing was trained or saved\n"};
  say_at_once(kLines[number == SIGHUP ? 0 : number == SIGINT ? 1 : 2]);
  ::_exit(128 + (number == SIGXCPU ? SIGTERM : number));
}

std::int64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000 + now.tv_nsec / 1'000'000;
}

/// The first one is answered; one that comes a second later or more ends the process. Sooner it is
/// the same request: `timeout` and some terminals send two. SIGXCPU comes every second, and demands
/// nothing.
void note_end_signal(int number) {
  constexpr std::int64_t kApart_ms = 1'000;
  const int error = errno;
  if (g_end_signal == 0) {
    g_end_signal = number == SIGXCPU ? SIGTERM : number;
    g_first_signal_ms = now_ms();
    say_at_once(std::string_view(g_answer.data()));
  } else if (number != SIGXCPU && now_ms() - g_first_signal_ms >= kApart_ms) {
    if (g_answer[0] != 0) {
      say_at_once("error: [signal] a second signal came; the run ends at once, as last saved\n");
    }
    ::signal(number, SIG_DFL);
    (void)::raise(number);
  }
  errno = error;
}

void take_signals(std::string_view answer) {
  answer.copy(g_answer.data(), g_answer.size() - 1);
  on_end_signals(&note_end_signal);
  struct sigaction action = {};
  action.sa_handler = [](int) { g_save_asked = 1; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

/// The micro-batches of a step, of the newest checkpoint here that has a readable state: it is read
/// before anything is verified, and loading steps over what is damaged, too. 0: there is none.
std::int64_t saved_micro_batches(const std::string& folder) {
  for (const FoundFolder& found : newest_first(named_checkpoints(folder))) {
    const std::string file = found.path + "/" + kStateFile;
    try {
      return RunState::parse(read_file(file, "resume", UINT64_MAX), file).step_micro_batches;
    } catch (const Error&) {  // load_checkpoint() says what is wrong with it
    }
  }
  return 0;
}

/// The largest of all ranks' numbers.
std::int64_t largest(Communicator& ranks, std::int64_t mine) {
  std::int64_t most = mine;
  for (const std::string& text : ranks.of_all_ranks(std::to_string(mine))) {
    most = std::max<std::int64_t>(most, std::stoll(text));
  }
  return most;
}

/// Whether there is what --resume auto could go on from, on any host: a checkpoint that has its
/// name, also a damaged one, over which no run begins anew; or a save that all of its disks have
/// sealed. One that fewer have sealed was none yet.
bool has_checkpoints(const std::string& folder, Communicator& ranks) {
  constexpr std::string_view kNamed = "named";
  const NamedCheckpoints named = named_checkpoints(folder);
  const bool here =
      !named.whole.empty() || !named.broken.empty() ||
      std::ranges::any_of(named.slices, [](const auto& slices) { return slices.is_named(); });
  std::string mine(here ? kNamed : "");
  for (const FoundSlices& slices : named.slices) {
    mine += here ? "" : fmt::format("{} {} {} ", slices.save, slices.disk, slices.disks);
  }
  std::map<std::string, std::set<std::size_t>> sealed;  // [save] disks
  for (const std::string& text : ranks.of_all_ranks(std::move(mine))) {
    if (text == kNamed) {
      return true;
    }
    std::istringstream words(text);
    std::string save;
    std::size_t disk = 0;
    std::size_t disks = 0;
    while (words >> save >> disk >> disks) {
      sealed[save].insert(disk);
      if (sealed[save].size() == disks) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

std::string resume_folder(const RunFlags& flags, Communicator& ranks) {
  const bool is_auto = flags.resume == kAuto;
  const std::string folder = is_auto ? checkpoints_of(flags.output_dir) : flags.resume;
  const bool anywhere =
      is_auto ? has_checkpoints(folder, ranks)
              : largest(ranks, !folder.empty() && fs::is_directory(folder) ? 1 : 0) > 0;
  if (!anywhere && !is_auto && !folder.empty()) {
    throw user_error("flags",
                     "--resume is {}, and there is no such folder; give a checkpoint, a "
                     "run's folder, or auto",
                     flags.resume);
  }
  return anywhere ? folder : "";
}

bool is_foreign_everywhere(const std::string& folder, Communicator& ranks) {
  const std::vector<std::string> said =
      ranks.of_all_ranks(is_foreign_checkpoint(folder) ? "yes" : "no");
  const auto other =
      std::ranges::find_if(said, [&](const std::string& answer) { return answer != said.front(); });
  if (other != said.end()) {
    throw user_error("resume",
                     "{} holds a checkpoint of DeepSpeed or torch for {} of {} ranks only; copy it "
                     "to every host",
                     folder, std::ranges::count(said, "yes"), said.size());
  }
  return said.front() == "yes";
}

void keep_global_batch(RunFlags& flags, Communicator& ranks) {
  const std::string folder = resume_folder(flags, ranks);
  std::int64_t micro_batches = largest(ranks, folder.empty() ? 0 : saved_micro_batches(folder));
  if (!flags.deepspeed_config.empty()) {
    return;
  }
  std::string where = "in " + folder;
  if (micro_batches == 0 || flags.gradient_accumulation_steps) {
    micro_batches = parse_environment(process_variables()).first_world /
                    std::max<std::int64_t>(1, flags.sequence_parallel.value_or(1)) *
                    flags.gradient_accumulation_steps.value_or(1);
    where = "of the run before its restart";
  }
  const std::int64_t sharers = std::max<std::int64_t>(1, flags.sequence_parallel.value_or(1));
  const std::int64_t groups = std::max<std::int64_t>(1, ranks.world_size() / sharers);
  const std::vector<std::string> ignored = split(flags.resume_ignore);
  if (micro_batches == 0 || micro_batches == groups ||
      std::ranges::find(ignored, "batch") != ignored.end()) {
    return;
  }
  if (micro_batches % groups != 0) {
    throw user_error("resume",
                     "a step {} has {} micro-batches, which {} {} cannot share; use a number that "
                     "divides it, or another --batch_size with --resume_ignore batch",
                     where, micro_batches, groups,
                     sharers == 1 ? "ranks" : "groups of ranks that share rows");
  }
  flags.gradient_accumulation_steps = micro_batches / groups;
}

ResumedRun resume_run(const RunFlags& flags, Engine& engine, Communicator& ranks) {
  const std::string folder = resume_folder(flags, ranks);
  ResumedRun resumed;
  std::vector<std::string>& lines = resumed.lines;
  if (folder.empty()) {
    if (!flags.resume.empty()) {
      const std::string searched = checkpoints_of(flags.output_dir);
      lines.push_back(fmt::format("resume   {} holds no checkpoint: a fresh start", searched));
    }
    return resumed;
  }
  LoadArgs args;
  args.ignored = split(flags.resume_ignore);
  const auto data = std::ranges::find(flags.typed, "--dataset_name", [](const auto& typed) {
    return std::string_view(typed.first);
  });
  args.data_name = data != flags.typed.end() ? data->second : "";
  const LoadedCheckpoint loaded =
      is_foreign_everywhere(folder, ranks)
          ? engine.load_foreign(foreign_state(open_foreign_checkpoint(folder), engine.model()))
          : engine.load_checkpoint(folder, "", args);
  if (engine.rank() == 0 && !flags.output_dir.empty()) {
    cut_metrics(flags.output_dir, loaded.step);
    cut_monitors(engine.config().monitors, flags.output_dir,
                 loaded.step * engine.train_batch_size());
  }
  resumed.client_state = loaded.client_state;
  lines.push_back(fmt::format("resume   after step {}, from {}", loaded.step, loaded.path));
  for (const std::string& note : loaded.notes) {
    lines.push_back("resume   " + note);
  }
  return resumed;
}

void end_on_signals() { on_end_signals(&say_and_end); }

RunCheckpoints::RunCheckpoints(const RunFlags& flags, Engine& engine, MetricsWriter& metrics,
                               RunRoom& room,
                               std::vector<std::pair<std::string, std::string>> files,
                               std::function<std::string()> client_state)
    : flags_(flags),
      engine_(engine),
      metrics_(metrics),
      room_(room),
      files_(std::move(files)),
      client_state_(std::move(client_state)) {
  if (!flags.stop_after.empty()) {
    stop_after_s_ = parse_duration_s("--stop_after", flags.stop_after);
  }
  if (!flags.resume.empty() && engine.global_steps() > 0) {
    begun_step_ = engine.global_steps();  // it is there
  }
  const bool saves = flags.save_every > 0 || stop_after_s_ > 0;
  const bool is_drawn = ::isatty(STDERR_FILENO) == 1;  // maybe a bar, whose line ends here
  take_signals(engine.rank() != 0
                   ? ""
                   : fmt::format("{}signal   the run ends after this step and saves its model{}; a "
                                 "further signal, from 1 s on, ends it at once, unsaved\n",
                                 is_drawn ? "\n" : "",
                                 saves ? " and a checkpoint" : ", no checkpoint"));
  room_.hold();
}

std::optional<StepResult> RunCheckpoints::train_step() {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  if (g_end_signal != 0 || (stop_after_s_ > 0 && passed.count() >= stop_after_s_)) {
    engine_.ask_to_stop();
  }
  if (g_save_asked != 0) {
    g_save_asked = 0;
    engine_.ask_to_save();
  }
  try {
    std::optional<StepResult> result = engine_.train_step();
    if (result) {
      ++steps_;
      applied_ += result->verdict.outcome == StepOutcome::kSkip ? 0 : 1;
    }
    return result;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadState) {
      throw;
    }
    bad_state_ = error;  // alike on all ranks, and the engine stands between two steps
    return std::nullopt;
  }
}

bool RunCheckpoints::after(const StepResult& result) {
  if (result.checkpoint) {
    report(*result.checkpoint);
  }
  stopped_ = result.stop_asked;
  const bool due =
      flags_.save_every > 0 && result.step % static_cast<std::int64_t>(flags_.save_every) == 0;
  if (!stopped_ && (due || result.save_asked)) {
    save();
  }
  return !stopped_;
}

void RunCheckpoints::save() {
  if (const auto before = engine_.finish_checkpoint()) {
    report(*before);
  }
  begun_step_ = engine_.global_steps();
  room_.give_back();
  CheckpointArgs args{.folder = checkpoints_of(flags_.output_dir), .keep = flags_.keep};
  args.files = files_;
  if (client_state_) {
    args.client_state = client_state_();
  }
  if (!engine_.begin_checkpoint(std::move(args))) {
    report(*engine_.finish_checkpoint());
  }
}

void RunCheckpoints::report(const CheckpointOutcome& outcome) {
  last_failure_ = outcome.error;
  any_failed_ = any_failed_ || !outcome.saved();
  room_.hold();
  if (outcome.saved()) {
    metrics_.note(fmt::format("checkpoint of step {} in {}: {:.1f} MB in {:.2f} s", outcome.step,
                              outcome.path, static_cast<double>(outcome.bytes) / 1e6,
                              outcome.seconds));
  } else if (engine_.rank() == 0) {
    metrics_.warn(
        fmt::format("{} (step {} is not saved, and the run goes on)", outcome.error, outcome.step));
  }
  if (!outcome.warning.empty()) {
    metrics_.note("older checkpoints stay: " + outcome.warning);
  }
}

void RunCheckpoints::finish() {
  const bool saves = flags_.save_every > 0 || stop_after_s_ > 0;
  if (saves && begun_step_ != engine_.global_steps()) {
    save();
  }
  if (const auto last = engine_.finish_checkpoint()) {
    report(*last);
  }
  if (saves && stopped_ && last_failure_.empty()) {
    metrics_.note(fmt::format("stopped after step {}; the same command with --resume auto goes on",
                              engine_.global_steps()));
  }
}

void RunCheckpoints::save_model(const std::string& folder, const std::function<void()>& save) {
  std::error_code ignored;
  const bool is_there = engine_.rank() == 0 && fs::exists(folder, ignored);
  if (steps_ > 0 && applied_ == 0 && engine_.sum_over_ranks({is_there ? 1.0 : 0.0})[0] > 0) {
    return;
  }
  room_.give_back();
  try {
    save();
  } catch (const Error&) {
    not_saved_ = std::current_exception();
  }
}

std::string RunCheckpoints::ended(std::int64_t of_steps) const {
  if (bad_state_ || not_saved_ || (steps_ > 0 && applied_ == 0)) {
    return fmt::format("failed at {} of {}", engine_.global_steps(), of_steps);
  }
  return stopped_ ? fmt::format("interrupted at {} of {}", engine_.global_steps(), of_steps)
                  : "done";
}

int RunCheckpoints::exit_code() const {
  if (bad_state_) {
    throw *bad_state_;
  }
  if (steps_ > 0 && applied_ == 0) {
    throw failure(ExitCode::kBadState, "train",
                  "all {} steps were skipped, since no gradient was finite: nothing was learnt; "
                  "lower the learning rate or fp16.initial_scale_power, or look at the data",
                  steps_);
  }
  if (not_saved_) {
    std::rethrow_exception(not_saved_);
  }
  if (!last_failure_.empty()) {
    if (engine_.rank() > 0) {
      return static_cast<int>(ExitCode::kFailure);
    }
    throw failure(ExitCode::kFailure, "checkpoint",
                  "the model is saved, and the last checkpoint is not: {}", last_failure_);
  }
  if (g_end_signal != 0) {
    return 128 + g_end_signal;
  }
  return static_cast<int>(any_failed_ || metrics_.lost() ? ExitCode::kReportLost : ExitCode::kDone);
}

}  // namespace tandem
