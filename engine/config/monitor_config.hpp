// engine/config/monitor_config.hpp — the settings of a DeepSpeed config's sections `tensorboard`,
// `csv_monitor`, `wandb`, `comms_logger` and `flops_profiler`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

/// Files lie in output_path/job_name.
struct MonitorFolder {
  bool enabled = false;
  std::string output_path;  // empty: the run's folder
  std::string job_name = "DeepSpeedJobName";
};

struct WandbConfig {
  bool enabled = false;
  std::string group;  // empty: none, as the team
  std::string team;
  std::string project = "deepspeed";
};

struct MonitorConfig {
  MonitorFolder tensorboard;
  MonitorFolder csv;
  WandbConfig wandb;
};

struct CommsLoggerConfig {
  bool enabled = false;
  bool verbose = false;               // a line for each operation, too
  bool prof_all = true;               // false: only those of prof_ops
  std::vector<std::string> prof_ops;  // DeepSpeed's names
  bool debug = false;                 // separate rows for each unit
};

struct FlopsProfilerConfig {
  bool enabled = false;
  std::int64_t profile_step = 1;    // 1-based; 0: the first one, too
  std::int64_t module_depth = -1;   // of the aggregated part; -1: all
  std::int64_t top_modules = 1;     // of each depth there
  bool detailed = true;             // the tree, too
  std::string output_file;          // empty: the console
  double recompute_fwd_factor = 0;  // of forward's FLOPs in backward; 0: what the engine computes
};

}  // namespace tandem
