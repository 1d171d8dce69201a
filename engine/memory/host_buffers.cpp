#include "engine/memory/host_buffers.hpp"

namespace tandem {

std::int64_t most_host_buffer_bytes(const Model& model, PlanInput input) {
  input.shape.shadows = {};
  const auto staging_with_all = [&](StatePlacement placement) {
    input.shape.engine.placements.assign(model.units.size(), placement);
    return plan_memory(model, input).of(MemoryPurpose::kStaging, MemoryKind::kHost);
  };
  return staging_with_all(StatePlacement::kDevice) - staging_with_all(StatePlacement::kHost);
}

}  // namespace tandem
