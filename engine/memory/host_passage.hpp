// engine/memory/host_passage.hpp — the host memory that what lies on an accelerator passes through,
// to be loaded and saved. Pure: any thread.
#pragma once

#include <cstdint>

#include "engine/memory/memory_plan.hpp"

namespace tandem {

/// The most that a rank needs of it: with the state of all units there.
[[nodiscard]] std::int64_t most_host_passage(const Model& model, PlanInput input);

}  // namespace tandem
