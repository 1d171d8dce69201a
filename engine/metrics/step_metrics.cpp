#include "engine/metrics/step_metrics.hpp"

#include <string_view>

#include <fmt/format.h>

#include "runtime/util/json_writer.hpp"

namespace tandem {

std::string json_line(const StepMetrics& m) {
  JsonWriter json;
  json.begin_object()
      .field("step", m.step)
      .field("epoch", m.epoch)
      .field("loss", m.loss)
      .field("lr", m.lr)
      .field("grad_norm", m.grad_norm)
      .field("loss_scale", m.loss_scale)
      .field("tokens", m.tokens)
      .field("step_time_s", m.step_time_s)
      .field("tokens_per_s", m.tokens_per_s)
      .field("tflops", m.tflops)
      .field("overlap_efficiency", m.overlap_efficiency)
      .field("optimizer_s", m.optimizer_s)
      .field("exposed_optimizer_s", m.exposed_optimizer_s)
      .field("exposed_gather_s", m.exposed_gather_s)
      .field("exposed_reduce_s", m.exposed_reduce_s)
      .field("exposed_data_s", m.exposed_data_s)
      .field("exposed_checkpoint_s", m.exposed_checkpoint_s)
      .field("exposed_disk_s", m.exposed_disk_s)
      .field("exposed_activation_s", m.exposed_activation_s)
      .field("disk_busy_s", m.disk_busy_s)
      .field("verdict", m.verdict)
      .field("speculated", m.speculated)
      .field("peak_host_bytes", m.peak_host_bytes)
      .field("peak_device_bytes", m.peak_device_bytes)
      .end_object();
  return json.take();
}

std::string json_line(std::int64_t step, const EvalSums& sums) {
  JsonWriter json;
  json.begin_object()
      .field("step", step)
      .field("eval_loss", sums.mean())
      .field("eval_tokens", sums.labels)
      .field("eval_s", sums.seconds)
      .field("perplexity", sums.perplexity())
      .field("eval_label_loss", sums.label_mean())
      .field("label_perplexity", sums.label_perplexity())
      .end_object();
  return json.take();
}

std::string console_line(const StepMetrics& m) {
  constexpr double kMsPerS = 1000;
  std::string line = fmt::format(
      "Step {:4d} | Loss: {:.4f} | Time: {:5.0f}ms | TFLOPS: {:5.2f} | Tokens/s: {:6.0f}", m.step,
      m.loss, m.step_time_s * kMsPerS, m.tflops, m.tokens_per_s);
  line += fmt::format(" | LR: {:.2e} | Norm: {:.3f} | Busy: {:3.0f}%", m.lr, m.grad_norm,
                      m.overlap_efficiency * 100);
  if (m.verdict != "commit") {
    line += " | " + m.verdict;
  }
  return line;
}

namespace {

std::string phases_line(const PhaseTimes& times, std::string_view suffix) {
  constexpr double kMsPerS = 1000;
  return fmt::format(
      "[Rank 0] time (ms) | fwd{0}: {1:.2f} | bwd{0}: {2:.2f} | bwd_inner{0}: {3:.2f} | "
      "bwd_allreduce{0}: {4:.2f} | step{0}: {5:.2f}",
      suffix, times.forward_s * kMsPerS, times.backward_s * kMsPerS,
      times.backward_inner_s() * kMsPerS, times.allreduce_s * kMsPerS, times.step_s * kMsPerS);
}

}  // namespace

std::string micro_breakdown_line(const PhaseTimes& micro_step) {
  return phases_line(micro_step, "_microstep");
}
std::string breakdown_line(const PhaseTimes& step) { return phases_line(step, ""); }

}  // namespace tandem
