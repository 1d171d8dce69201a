#include "engine/metrics/summary.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

/// Order statistic at `share` of sorted values, linearly between neighbours.
double at_share(const std::vector<double>& sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(position));
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (position - static_cast<double>(low));
}

// A power of two is divided into kParts buckets.
constexpr int kParts = 128;
constexpr int kLeastExponent = -30;
constexpr int kExponents = 60;

std::size_t bucket_of(double seconds) {
  int exponent = 0;
  const double half_to_one = std::frexp(seconds, &exponent);
  const int power = std::clamp(exponent - kLeastExponent, 0, kExponents - 1);
  const auto part = static_cast<int>((half_to_one - 0.5) * 2 * kParts);
  return static_cast<std::size_t>(power * kParts + std::clamp(part, 0, kParts - 1));
}

double middle_of(std::size_t bucket) {
  const auto part = static_cast<double>(bucket % kParts);
  const int exponent = static_cast<int>(bucket / kParts) + kLeastExponent;
  return std::ldexp(0.5 + (part + 0.5) / (2 * kParts), exponent);
}

}  // namespace

void StepTimes::add(double seconds) {
  ++count_;
  if (buckets_.empty() && exact_.size() < kExact) {
    exact_.push_back(seconds);
    return;
  }
  buckets_.resize(static_cast<std::size_t>(kExponents) * kParts);
  for (const double earlier : std::exchange(exact_, {})) {
    ++buckets_[bucket_of(earlier)];
  }
  ++buckets_[bucket_of(seconds)];
}

double StepTimes::at_share(double share) const {
  auto before = static_cast<std::int64_t>(share * static_cast<double>(count_ - 1));
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    before -= buckets_[bucket];
    if (before < 0) {
      return middle_of(bucket);
    }
  }
  return 0;
}

Quantiles StepTimes::quantiles() const {
  return buckets_.empty() ? quantiles_of(exact_)
                          : Quantiles{at_share(0.5), at_share(0.1), at_share(0.9)};
}

Quantiles quantiles_of(std::vector<double> values) {
  if (values.empty()) {
    return {};
  }
  std::ranges::sort(values);
  return {at_share(values, 0.5), at_share(values, 0.1), at_share(values, 0.9)};
}

void SummaryBuilder::Totals::add(const StepMetrics& m) {
  step_times.add(m.step_time_s);
  time_s += m.step_time_s;
  tflop += m.tflops * m.step_time_s;
  overlap += m.overlap_efficiency;
  optimizer_s += m.optimizer_s;
  exposed_optimizer_s += m.exposed_optimizer_s;
  tokens += m.tokens;
}

void SummaryBuilder::add(const StepMetrics& m) {
  if (steps_ == 0) {
    loss_first_ = m.loss;
  }
  loss_last_ = m.loss;
  unlabelled_micro_batches_ += m.micro_batches_unlabelled;
  unlabelled_steps_ += m.unlabelled ? 1 : 0;
  speculated_ += m.speculated ? 1 : 0;
  rollbacks_ += m.verdict == "rollback" ? 1 : 0;
  skips_ += m.verdict == "skip" ? 1 : 0;
  (steps_ < warmup_steps_ ? warm_ : measured_).add(m);
  ++steps_;
}

RunSummary SummaryBuilder::summary() const {
  const bool all_warm = measured_.step_times.count() == 0;
  const Totals& t = all_warm ? warm_ : measured_;
  RunSummary s;
  s.steps = steps_;
  s.warmup_steps = all_warm ? 0 : warm_.step_times.count();
  s.loss_first = loss_first_;
  s.loss_last = loss_last_;
  s.step_time_s = t.step_times.quantiles();
  if (t.time_s > 0) {
    s.tokens_per_s = static_cast<double>(t.tokens) / t.time_s;
    s.tflops = t.tflop / t.time_s;
  }
  if (t.step_times.count() > 0) {
    const auto count = static_cast<double>(t.step_times.count());
    s.overlap_efficiency = t.overlap / count;
    s.optimizer_s = t.optimizer_s / count;
    s.exposed_optimizer_s = t.exposed_optimizer_s / count;
  }
  s.unlabelled_micro_batches = unlabelled_micro_batches_;
  s.unlabelled_steps = unlabelled_steps_;
  s.speculation_steps = speculated_;
  s.speculation_rollbacks = rollbacks_;
  s.speculation_skips = skips_;
  return s;
}

void set_utilisation(RunSummary& s, double model_tflops, const MatmulRate& rank_rate,
                     int ranks) noexcept {
  s.peak_tflops = rank_rate.best_tflops * ranks;
  const bool was_alone = rank_rate.is_steady() && model_tflops <= s.peak_tflops;
  s.mfu = was_alone ? model_tflops / s.peak_tflops : 0;
}

std::string summary_json(const RunSummary& s) {
  JsonWriter json(2);
  json.begin_object();
  json.field("ended", s.ended);
  json.field("steps", s.steps).field("warmup_steps", s.warmup_steps);
  json.field("loss_first", s.loss_first).field("loss_last", s.loss_last);
  json.key("step_time_s").begin_object();
  json.field("median", s.step_time_s.median).field("p10", s.step_time_s.p10);
  json.field("p90", s.step_time_s.p90).end_object();
  json.field("tokens_per_s", s.tokens_per_s).field("tflops", s.tflops).key("mfu");
  s.mfu > 0 ? json.value(s.mfu) : json.value(nullptr);  // null: none was taken
  json.field("peak_tflops", s.peak_tflops);
  json.field("overlap_efficiency", s.overlap_efficiency);
  json.field("optimizer_s", s.optimizer_s);
  json.field("exposed_optimizer_s", s.exposed_optimizer_s);
  json.key("unlabelled").begin_object();
  json.field("micro_batches", s.unlabelled_micro_batches);
  json.field("steps", s.unlabelled_steps).end_object();
  json.key("speculation").begin_object();
  json.field("steps", s.speculation_steps).field("rollbacks", s.speculation_rollbacks);
  json.field("skips", s.speculation_skips).end_object();
  json.key("memory").begin_object();
  for (const auto& [kind, figure] : s.memory) {
    json.key(kind).begin_object();
    json.field("predicted_bytes", figure.predicted_bytes);
    json.field("actual_bytes", figure.actual_bytes).end_object();
  }
  json.end_object();
  json.field("device", s.device).field("world_size", s.world_size).field("version", s.version);
  json.key("flags").begin_object();
  for (const auto& [name, value] : s.flags) {
    json.field(name, value);
  }
  json.end_object().end_object();
  return json.take() + "\n";
}

std::string summary_text(const RunSummary& s) {
  constexpr double kMsPerS = 1000;
  constexpr double kMiB = 1 << 20;
  std::string text = fmt::format("Summary of {} steps ({} warm-up steps left out of the times)\n",
                                 s.steps, s.warmup_steps);
  text += s.ended == "done" ? "" : fmt::format("  ended       {}\n", s.ended);
  text += fmt::format("  loss        {:.4f} -> {:.4f}\n", s.loss_first, s.loss_last);
  text += fmt::format("  step time   median {:.1f} ms, p10 {:.1f}, p90 {:.1f}\n",
                      s.step_time_s.median * kMsPerS, s.step_time_s.p10 * kMsPerS,
                      s.step_time_s.p90 * kMsPerS);
  text += fmt::format("  throughput  {:.0f} tokens/s, {:.3f} TFLOPS", s.tokens_per_s, s.tflops);
  text += s.mfu > 0 ? fmt::format(", MFU {:.1f} %\n", s.mfu * 100)
          : s.peak_tflops > 0
              ? fmt::format("; no MFU: a peak of {:.3f} was measured beside other work\n",
                            s.peak_tflops)
              : "\n";
  text += fmt::format("  busy        the busiest resource works {:.0f} % of a step\n",
                      s.overlap_efficiency * 100);
  text += fmt::format("  optimizer   works {:.2f} ms per step; compute waits {:.2f} ms for it{}\n",
                      s.optimizer_s * kMsPerS, s.exposed_optimizer_s * kMsPerS,
                      s.exposed_optimizer_s > s.optimizer_s ? ", and for its gradients" : "");
  const double hidden_s = s.optimizer_s - s.exposed_optimizer_s;
  if (hidden_s > 0 && s.step_time_s.median > 0) {
    text += fmt::format(
        "  gained      without overlap of the optimizer a step would take {:.1f} % longer\n",
        hidden_s / s.step_time_s.median * 100);
  }
  if (s.unlabelled_micro_batches > 0) {
    text += fmt::format("  unlabelled  {} micro-batches had no label; {} steps had none at all\n",
                        s.unlabelled_micro_batches, s.unlabelled_steps);
  }
  if (s.speculation_steps > 0) {
    text += fmt::format(
        "  speculation {} steps began updates ahead of the verdict: {} made them again, {} were "
        "skipped\n",
        s.speculation_steps, s.speculation_rollbacks, s.speculation_skips);
  }
  for (const auto& [kind, figure] : s.memory) {
    text += fmt::format("  {:<11} {:.1f} MiB, predicted {:.1f} MiB\n", kind + " memory",
                        static_cast<double>(figure.actual_bytes) / kMiB,
                        static_cast<double>(figure.predicted_bytes) / kMiB);
  }
  return text;
}

}  // namespace tandem
