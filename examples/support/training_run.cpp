#include "examples/support/training_run.hpp"

#include <csignal>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "engine/program.hpp"
#include "runtime/machine.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kStepsBetweenMemoryReadings = 100;
constexpr double kLongStepS = 0.01;

volatile std::sig_atomic_t g_signal = 0;

std::int64_t recent_peak_bytes(const StepResult& result) {
  static std::int64_t peak_bytes = 0;
  if (peak_bytes == 0 || result.step_time_s > kLongStepS ||
      result.step % kStepsBetweenMemoryReadings == 0) {
    peak_bytes = static_cast<std::int64_t>(machine::peak_rss_bytes());
  }
  return peak_bytes;
}

}  // namespace

void finish_on_signals() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    action.sa_handler = [](int number) { g_signal = number; };
    action.sa_flags = SA_RESETHAND;
    sigaction(signal, &action, nullptr);
  }
}

int stop_signal() { return g_signal; }

std::optional<StepResult> train_step_or_stop(Engine& engine) {
  if (g_signal != 0) {
    engine.ask_to_stop();
  }
  return engine.train_step();
}

std::string fresh_output_dir(std::string_view name) {
  return fmt::format("runs/{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(std::time(nullptr)));
}

StepMetrics metrics_of(const StepResult& result, double epoch, double tflops) {
  return {.step = result.step,
          .epoch = epoch,
          .loss = result.loss,
          .lr = result.learning_rate,
          .grad_norm = result.verdict.norm.value,
          .loss_scale = result.loss_scale,
          .tokens = result.tokens,
          .step_time_s = result.step_time_s,
          .tokens_per_s = static_cast<double>(result.tokens) / result.step_time_s,
          .tflops = tflops,
          .overlap_efficiency = result.overlap_efficiency,
          .optimizer_s = result.exposure.optimizer_busy_s,
          .exposed_optimizer_s = result.exposure.optimizer_s,
          .exposed_gather_s = result.exposure.gather_s,
          .exposed_reduce_s = result.exposure.reduce_s,
          .exposed_data_s = result.exposure.data_s,
          .verdict = std::string(name_of(result.verdict.outcome)),
          .speculated = result.verdict.speculated,
          .peak_host_bytes = recent_peak_bytes(result),
          .peak_device_bytes = result.peak_device_bytes};
}

void complete_summary(RunSummary& summary, const RunFlags& flags, const Config& config,
                      Engine& engine, double model_tflops, std::int64_t without_engine_bytes) {
  const bool is_simulated = flags.device == "sim";
  constexpr double kTera = 1e12;
  summary.mfu =
      model_tflops / (is_simulated ? parse_sim_spec(flags.sim_spec).compute_flops_per_s / kTera
                                   : engine.measure_peak_tflops());
  summary.device = is_simulated ? "sim" : "cpu";
  summary.world_size = config.world_size;
  summary.version = version();
  summary.flags = flags.typed;
  summary.memory["host"] = {
      .predicted_bytes =
          without_engine_bytes + static_cast<std::int64_t>(engine.resident_bytes().total()),
      .actual_bytes = static_cast<std::int64_t>(machine::peak_rss_bytes())};
  if (is_simulated) {
    const auto bytes = static_cast<std::int64_t>(engine.resident_bytes().device);
    summary.memory["device"] = {.predicted_bytes = bytes, .actual_bytes = bytes};
  }
}

}  // namespace tandem
