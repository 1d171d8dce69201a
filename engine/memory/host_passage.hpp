// engine/memory/host_passage.hpp — the host memory that what lies on an accelerator passes through,
// to be loaded and saved. Pure: any thread.
#pragma once

#include <cstdint>

#include "engine/memory/memory_plan.hpp"

namespace tandem {

/// What a rank needs of it once the state of all units lies there, so of any of them at most.
[[nodiscard]] std::int64_t most_host_passage(const Model& model, PlanInput input);

}  // namespace tandem
