// engine/checkpoint/changed_settings.hpp — a line for every setting that decides a run's numbers
// and is another one than in the checkpoint that the run goes on from.
//
// A resumed run takes its own settings: rates, decay, clipping, schedule. It keeps the checkpoint's
// counts and states (docs/checkpoints.md has the table). Nothing is refused here: check_resume()
// does that.
#pragma once

#include <string>
#include <vector>

#include "engine/checkpoint/run_state.hpp"

namespace tandem {

/// `name: before in the checkpoint, after now: why it counts`, for keys of the resolved configs
/// that change what a step computes, and for RunState::settings. A checkpoint that has neither, as
/// after a conversion, gives no line.
[[nodiscard]] std::vector<std::string> changed_settings(const RunState& saved, const RunState& now);

}  // namespace tandem
