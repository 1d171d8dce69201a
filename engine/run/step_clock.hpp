// engine/run/step_clock.hpp — measures where a step's time goes, for its StepResult.
//
// Thread rule: the loop's thread.
#pragma once

#include "engine/rank/rank.hpp"
#include "engine/step/train_step.hpp"
#include "engine/types/step_result.hpp"
#include "engine/types/stopwatch.hpp"

namespace tandem {

class StepClock {
 public:
  /// Both outlive it.
  StepClock(const Rank& rank, const TrainStep& step) : rank_(rank), step_(step) {}

  void begin();
  void add_forward(double seconds);
  /// `reduce_s`: the part of `seconds` for which the lane waited for reductions.
  void add_backward(double seconds, double reduce_s);
  /// Counts time that training waited for a save between steps.
  void add_checkpoint_wait(double seconds) { checkpoint_wait_s_ += seconds; }

  /// Fills in times, exposure and phases. `finish_s`: the time from the last backward to the last
  /// update issued, of which `reduce_s` belongs to backward. `data_s`: the time that the step
  /// waited for batches.
  void measure(StepResult& result, double finish_s, double reduce_s, double data_s,
               std::size_t micro_steps, const ResidentBytes& resident);

 private:
  void measure_phases(StepResult& result, double finish_s, double reduce_s,
                      std::size_t micro_steps) const;

  const Rank& rank_;
  const TrainStep& step_;
  PhaseTimes phases_;  // of the micro-steps so far
  PhaseTimes last_micro_step_;
  double checkpoint_wait_s_ = 0;
  Busy busy_at_start_;
  Stopwatch watch_;
};

}  // namespace tandem
