// engine/metrics/summary.hpp — the figures of a whole run: summary.json.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/metrics/matmul_rate.hpp"
#include "engine/metrics/step_metrics.hpp"

namespace tandem {

struct Quantiles {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
};

/// Linear interpolation between order statistics, as numpy's default; all 0 for no values.
[[nodiscard]] Quantiles quantiles_of(std::vector<double> values);

/// Quantiles of step times in bounded memory: exact up to kExact steps; beyond that times are
/// counted in buckets, and a quantile is off by at most 0.4 % (for times from 1 ns to days).
class StepTimes {
 public:
  static constexpr std::size_t kExact = 4096;

  void add(double seconds);
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] Quantiles quantiles() const;

 private:
  [[nodiscard]] double at_share(double share) const;

  std::int64_t count_ = 0;
  std::vector<double> exact_;          // all, as long as there are no buckets
  std::vector<std::int64_t> buckets_;  // number of times in each
};

struct MemoryFigure {
  std::int64_t predicted_bytes = 0;
  std::int64_t actual_bytes = 0;
};

/// Fields have summary.json's names. Means and quantiles are over the steps after warm-up (all
/// steps when every step was warm-up); tokens_per_s and tflops there are totals over the time of
/// those steps.
struct RunSummary {
  std::int64_t steps = 0;
  std::int64_t warmup_steps = 0;  // steps left out of the figures
  std::string ended = "done";     // or "interrupted at 65 of 900"
  double loss_first = 0;
  double loss_last = 0;
  Quantiles step_time_s;
  double tokens_per_s = 0;
  double tflops = 0;
  double peak_tflops = 0;  // of all ranks' devices, as measured at the end
  double mfu = 0;          // 0: the peak is not known
  double overlap_efficiency = 0;
  double optimizer_s = 0;                     // mean per step
  double exposed_optimizer_s = 0;             // mean per step
  std::int64_t unlabelled_micro_batches = 0;  // without a label; of all ranks
  std::int64_t unlabelled_steps = 0;          // steps of which no micro-batch has one
  std::int64_t speculation_steps = 0;
  std::int64_t speculation_rollbacks = 0;
  std::int64_t speculation_skips = 0;
  std::map<std::string, MemoryFigure> memory;  // per kind: "host", "device", ...
  std::string device = "cpu";
  std::int64_t world_size = 1;
  std::string version;
  std::vector<std::pair<std::string, std::string>> flags;  // name, value as text
};

/// Collects the figures of steps in bounded memory.
class SummaryBuilder {
 public:
  explicit SummaryBuilder(std::int64_t warmup_steps = 0) : warmup_steps_(warmup_steps) {}

  void add(const StepMetrics& metrics);
  /// Returns the measured figures; the caller fills in mfu, memory, device, world_size, version and
  /// flags.
  [[nodiscard]] RunSummary summary() const;

 private:
  struct Totals {
    StepTimes step_times;
    double time_s = 0;
    double tflop = 0;  // work: tflops x time
    double overlap = 0;
    double optimizer_s = 0;
    double exposed_optimizer_s = 0;
    std::int64_t tokens = 0;
    void add(const StepMetrics& metrics);
  };
  std::int64_t warmup_steps_;
  std::int64_t steps_ = 0;
  double loss_first_ = 0;
  double loss_last_ = 0;
  std::int64_t unlabelled_micro_batches_ = 0;
  std::int64_t unlabelled_steps_ = 0;
  std::int64_t speculated_ = 0;
  std::int64_t rollbacks_ = 0;
  std::int64_t skips_ = 0;
  Totals warm_;
  Totals measured_;
};

/// Sets mfu from the rates of a rank's matmuls, unless other programs used the processors while
/// those were measured: their rates differ, or the steps were faster.
void set_utilisation(RunSummary& summary, double model_tflops, const MatmulRate& rank_rate,
                     int ranks) noexcept;

[[nodiscard]] std::string summary_json(const RunSummary& summary);

/// Returns the lines that the console prints at the end of a run.
[[nodiscard]] std::string summary_text(const RunSummary& summary);

}  // namespace tandem
