#include "engine/metrics/monitors.hpp"

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/metrics/cut_metrics.hpp"
#include "engine/metrics/earlier_files.hpp"
#include "engine/metrics/line_file.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// As DeepSpeed joins them.
std::string folder_of(const MonitorFolder& block, const std::string& run_folder) {
  return fmt::format("{}/{}", block.output_path.empty() ? run_folder : block.output_path,
                     block.job_name.empty() ? MonitorFolder().job_name : block.job_name);
}

class TensorBoardMonitor : public ScalarMonitor {
 public:
  TensorBoardMonitor(std::string folder, bool append)
      : folder_(std::move(folder)), events_(folder_), fresh_(!append) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "tensorboard"; }
  void write(std::int64_t samples, const std::vector<Scalar>& scalars) override {
    if (std::exchange(fresh_, false)) {
      const std::string own = std::filesystem::path(events_.path()).filename();
      move_aside(folder_,
                 [&](std::string_view file) { return is_event_file(file) && file != own; });
    }
    events_.write(samples, scalars);
  }
  void close() override { events_.close(); }

 private:
  std::string folder_;
  EventWriter events_;
  bool fresh_;  // the files of an earlier run are still there
};

/// A file for each tag, as DeepSpeed names them: Train_Samples_lr.csv with the columns step and lr.
class CsvMonitor : public ScalarMonitor {
 public:
  CsvMonitor(std::string folder, bool append) : folder_(std::move(folder)), fresh_(!append) {
    if (::access(folder_.c_str(), W_OK | X_OK) != 0) {
      throw user_error("metrics", "cannot write {}: {}", folder_,
                       std::generic_category().message(errno));
    }
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "csv_monitor"; }
  void write(std::int64_t samples, const std::vector<Scalar>& scalars) override {
    if (std::exchange(fresh_, false)) {
      move_aside(folder_, &is_monitor_csv);
    }
    for (const auto& [tag, value] : scalars) {
      file_of(tag).append_line(fmt::format("{},{}", samples, value));
    }
  }
  void close() override {
    for (auto& [tag, file] : files_) {
      file->close();
    }
  }

 private:
  LineFile& file_of(std::string_view tag) {
    std::unique_ptr<LineFile>& file = files_[std::string(tag)];
    if (file == nullptr) {
      std::string name(tag);
      for (char& c : name) {
        c = c == '/' || c == ' ' ? '_' : c;
      }
      const std::string path = fmt::format("{}/{}.csv", folder_, name);
      std::error_code absent;
      const bool is_new = std::filesystem::file_size(path, absent) == 0 || absent;
      auto opened = std::make_unique<LineFile>(path, true);
      if (is_new) {
        opened->append_line(fmt::format("step,{}", tag.substr(tag.rfind('/') + 1)));
      }
      file = std::move(opened);
    }
    return *file;
  }

  std::string folder_;
  bool fresh_;
  std::map<std::string, std::unique_ptr<LineFile>> files_;  // by tag
};

}  // namespace

std::vector<std::unique_ptr<ScalarMonitor>> open_monitors(const MonitorConfig& config,
                                                          const std::string& run_folder,
                                                          bool append) {
  std::vector<std::unique_ptr<ScalarMonitor>> monitors;
  const auto open = [&]<class M>(std::type_identity<M>, const MonitorFolder& block) {
    if (block.enabled) {
      const std::string folder = folder_of(block, run_folder);
      make_output_dir(folder);
      monitors.push_back(std::make_unique<M>(folder, append));
    }
  };
  open(std::type_identity<TensorBoardMonitor>(), config.tensorboard);
  open(std::type_identity<CsvMonitor>(), config.csv);
  return monitors;
}

std::vector<Scalar> deepspeed_scalars(const StepMetrics& m, bool scales_loss,
                                      bool wall_clock_breakdown) {
  std::vector<Scalar> scalars = {{"Train/Samples/train_loss", m.loss}, {"Train/Samples/lr", m.lr}};
  if (scales_loss) {
    scalars.emplace_back("Train/Samples/loss_scale", m.loss_scale);
  }
  if (wall_clock_breakdown) {
    constexpr double kMsPerS = 1000;
    const PhaseTimes& t = m.phases;
    const Scalar timers[] = {
        {"Train/Samples/elapsed_time_ms_forward", t.forward_s * kMsPerS},
        {"Train/Samples/elapsed_time_ms_backward", t.backward_s * kMsPerS},
        {"Train/Samples/elapsed_time_ms_backward_inner", t.backward_inner_s() * kMsPerS},
        {"Train/Samples/elapsed_time_ms_backward_allreduce", t.allreduce_s * kMsPerS},
        {"Train/Samples/elapsed_time_ms_step", t.step_s * kMsPerS}};
    scalars.insert(scalars.end(), std::begin(timers), std::end(timers));
  }
  return scalars;
}

void cut_monitors(const MonitorConfig& config, const std::string& run_folder,
                  std::int64_t last_sample) {
  for (const MonitorFolder* block : {&config.tensorboard, &config.csv}) {
    if (block->enabled) {
      cut_metrics(folder_of(*block, run_folder), last_sample);
    }
  }
}

}  // namespace tandem
