#include "engine/run/step_clock.hpp"

#include <algorithm>
#include <utility>

namespace tandem {

void StepClock::begin() {
  phases_ = {};
  busy_at_start_ = rank_.busy();
  watch_ = Stopwatch();
}

void StepClock::add_forward(double seconds) {
  last_micro_step_ = {.forward_s = seconds};
  phases_.forward_s += seconds;
}

void StepClock::add_backward(double seconds, double reduce_s) {
  last_micro_step_.backward_s = seconds;
  last_micro_step_.allreduce_s = reduce_s;
  phases_.backward_s += seconds;
  phases_.allreduce_s += reduce_s;
}

void StepClock::measure(StepResult& result, double finish_s, double reduce_s, double data_s,
                        std::size_t micro_steps, const ResidentBytes& resident) {
  result.step_time_s = watch_.elapsed_s();
  Exposure& exposure = result.exposure;
  exposure = step_.exposure();
  exposure.data_s = data_s;
  exposure.checkpoint_s += std::exchange(checkpoint_wait_s_, 0);
  const Busy now = rank_.busy();
  exposure.compute_busy_s = now.compute_s - busy_at_start_.compute_s;
  exposure.optimizer_busy_s = now.optimizer_s - busy_at_start_.optimizer_s;
  exposure.copy_busy_s = now.copy_s - busy_at_start_.copy_s;
  exposure.to_device_busy_s = now.to_device_s - busy_at_start_.to_device_s;
  exposure.to_host_busy_s = now.to_host_s - busy_at_start_.to_host_s;
  exposure.disk_busy_s = now.disk_s - busy_at_start_.disk_s;
  result.peak_device_bytes = static_cast<std::int64_t>(resident.device);
  const double busiest =
      std::max({exposure.compute_busy_s, exposure.optimizer_busy_s, exposure.copy_busy_s,
                exposure.to_device_busy_s, exposure.to_host_busy_s, exposure.disk_busy_s});
  result.overlap_efficiency = std::min(1.0, busiest / result.step_time_s);
  measure_phases(result, finish_s, reduce_s, micro_steps);
}

void StepClock::measure_phases(StepResult& result, double finish_s, double reduce_s,
                               std::size_t micro_steps) const {
  result.phases = phases_;
  result.last_micro_step = last_micro_step_;
  for (PhaseTimes* times : {&result.phases, &result.last_micro_step}) {
    times->allreduce_s += reduce_s;
    times->backward_s += reduce_s;
    times->step_s = finish_s - reduce_s;
  }
  if (!rank_.computes_on_gpu()) {
    return;
  }
  // The loop's thread has only queued the work: the device's time is what it took.
  PhaseTimes& all = result.phases;
  all.forward_s = step_.visit_times().all(Phase::kForward);
  all.backward_s = step_.visit_times().all(Phase::kBackward) + all.allreduce_s;
  all.step_s = std::max(0.0, result.step_time_s - all.forward_s - all.backward_s);
  const auto count = static_cast<double>(micro_steps);
  result.last_micro_step = {.forward_s = all.forward_s / count,
                            .backward_s = all.backward_s / count,
                            .allreduce_s = all.allreduce_s / count,
                            .step_s = all.step_s};
}

}  // namespace tandem
