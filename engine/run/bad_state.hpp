// engine/run/bad_state.hpp — why a run whose steps are all skipped ends: the weight, the activation
// or the gradient that is not finite.
//
// A gradient that is not finite makes those of all units before it so, too; what was computed first
// is nearer to the cause. Only the last step that may be skipped looks for it.
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

/// Returns the cause, as a clause. A collective.
Task<std::string> cause_of_bad_state(const Rank* rank, TrainStep* step, AllRanks* ranks,
                                     BadStep bad);

}  // namespace tandem
