// engine/checkpoint/changed_settings.hpp — reports each setting that affects a run's numbers and
// differs from the checkpoint that the run resumes.
//
// A resumed run takes its own settings: rates, decay, clipping, schedule. It keeps the checkpoint's
// counts and states (docs/checkpoints.md has the table). check_resume() refuses what may not
// differ; nothing is refused here.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/run_state.hpp"

namespace tandem {

/// Returns a line `name: OLD in the checkpoint, NEW now: CONSEQUENCE` for each key of the resolved
/// configs that changes what a step computes, and for each of RunState::settings. A checkpoint
/// without these (a converted one) gives no line.
[[nodiscard]] std::vector<std::string> changed_settings(const RunState& saved, const RunState& now);

}  // namespace tandem
