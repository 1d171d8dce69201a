// engine/memory/host_buffers.hpp — the host memory of transfer buffers, through which data on an
// accelerator is loaded and saved. Pure: any thread.
#pragma once

#include <cstdint>

#include "engine/memory/memory_plan.hpp"

namespace tandem {

/// Returns the most bytes that a rank needs: with the state of all units on the accelerator.
[[nodiscard]] std::int64_t most_host_buffer_bytes(const Model& model, PlanInput input);

}  // namespace tandem
