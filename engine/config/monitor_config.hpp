// engine/config/monitor_config.hpp — what a DeepSpeed config's blocks `tensorboard`, `csv_monitor`
// and `wandb` say.
#pragma once

#include <string>

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

}  // namespace tandem
