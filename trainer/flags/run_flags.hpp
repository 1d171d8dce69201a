// trainer/flags/run_flags.hpp — the flags that all trainers have, under the same names and with
// the same meaning.
//
// Each trainer's flags are a RunFlags with its own defaults and flags beside them. A flag that
// stands for a key of the DeepSpeed JSON counts only when it was typed; with the built-in config
// the defaults count as well.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/device/core_plan.hpp"
#include "trainer/flags/engine_flags.hpp"
#include "trainer/flags/flag_table.hpp"
#include "trainer/program/program.hpp"

namespace CLI {
class App;
}

namespace tandem {

struct RunFlags : EngineFlags {
  std::string output_dir;
  std::uint64_t seed = 42;
  std::int64_t steps = 0;
  std::int64_t summary_skip = 15;  // first steps that the summary's figures leave out
  double log_interval = 1;         // steps, or below 1 their share of the run

  // Keys of the DeepSpeed JSON.
  bool deepspeed = false;
  std::string deepspeed_config;
  std::string dtype;  // empty: from the config
  std::optional<std::int64_t> stage;
  std::optional<double> gradient_clipping;
  std::optional<std::int64_t> gradient_accumulation_steps;
  std::optional<std::int64_t> sequence_parallel;

  double host_memory_gb = 0;  // 0: what is free

  // Checkpoints.
  double save_every = 0;  // steps, or below 1 their share of the run; 0: none
  int keep = 2;
  std::string resume;  // a folder, or auto
  bool overwrite_output_dir = false;
  std::string resume_ignore;  // parts of the run, by commas
  std::string stop_after;     // a time; empty: never

  // The reports.
  std::string progress = "auto";
  bool tensorboard = true;
  bool trace = false;
  std::string trace_steps;  // "A:B"; empty: with trace, the last ones that fit
  [[nodiscard]] bool traces() const noexcept { return trace || !trace_steps.empty(); }
  std::string status_socket;  // a path, 127.0.0.1:PORT or auto; empty: none
  bool use_wandb = false;
  std::string wandb_project;
  std::string wandb_run_name;
  std::vector<std::string> wandb_tags;

  /// Flags that the user typed, for summary.json and for telling a typed value from a default.
  std::vector<std::pair<std::string, std::string>> typed;
  [[nodiscard]] bool given(const std::string& flag) const;
};

/// Returns the rows of the flags that stand for keys of the DeepSpeed JSON, and of the JSON's own
/// flag.
[[nodiscard]] FlagGroup config_flags(RunFlags& flags);
/// Returns these rows, the engine's and the reports'. Each trainer adds --output_dir, --seed and
/// --steps itself, since their meaning or default differs, and also the two rows below.
[[nodiscard]] std::vector<FlagGroup> run_flags(RunFlags& flags);
[[nodiscard]] FlagRow log_interval_flag(RunFlags& flags);
[[nodiscard]] FlagRow summary_skip_flag(RunFlags& flags);

/// Parses the command line, and fills in `typed`. Returns false if the program has nothing more to
/// do (--help, --version). Throws user_error.
[[nodiscard]] bool parse_run_flags(CLI::App& app, RunFlags& flags, int argc,
                                   const char* const* argv);

/// Throws user_error for flags that contradict each other.
void check_run_flags(const RunFlags& flags);

/// Parses and checks all of the above, for a trainer that has no flags of its own. The values that
/// `flags` has are the defaults, and `about` is the first line of --help. Returns false as
/// parse_run_flags() does.
[[nodiscard]] bool parse_trainer_flags(const std::string& about, RunFlags& flags, int argc,
                                       const char* const* argv);

/// Returns the typed flags that stand for keys of the config.
std::vector<KeyOverride> config_overrides(const RunFlags& flags);
/// Returns the config in the file of --deepspeed_config, or else in the text `builtin`, with these
/// flags.
[[nodiscard]] Config run_config(const RunFlags& flags, std::int64_t world_size,
                                const std::string& builtin);

/// "cores    2 CPUs 0-1 (node 0): compute ..."
std::string cores_line(const CorePlan& cores, bool pinned);

}  // namespace tandem
