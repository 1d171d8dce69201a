// engine/run/bad_state.hpp — finds why a run skips all its steps: the weight, the activation or the
// gradient that is not finite.
//
// A gradient that is not finite makes the gradients of all units before it not finite, too, so the
// value that was computed first is nearest to the cause. Only the last step that may be skipped
// looks for that activation.
#pragma once

#include <string>

#include "engine/rank/rank.hpp"
#include "engine/run/all_ranks.hpp"
#include "engine/step/train_step.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// The step whose gradient is not finite.
struct BadStep {
  double loss = 0;
  std::string gradient;  // the parameter whose gradient is the first that is not finite
  std::size_t micro_batches = 1;
};

/// Returns the cause as a clause for a message. Collective.
Task<std::string> cause_of_bad_state(const Rank* rank, TrainStep* step, AllRanks* ranks,
                                     BadStep bad);

}  // namespace tandem
