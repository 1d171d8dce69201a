#include "engine/plan/activation_offload.hpp"

#include <vector>

#include <fmt/format.h>

#include "engine/types/boundary_share.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {
constexpr double kUnnoticed = 50e-6;  // of a micro-step
}  // namespace

EngineOptions with_activation_offload_of(const Config& config, EngineOptions options) {
  const bool has_place = options.device != DeviceKind::kCpu || !options.nvme.path.empty();
  if (!options.activation_offload) {
    if (config.cpu_checkpointing && options.activation_checkpointing && has_place) {
      options.activation_offload = 1;
    }
    return options;
  }
  const double share = *options.activation_offload;
  if (!(share >= 0 && share <= 1)) {
    throw user_error("engine", "activation_offload is {}; it must be between 0 and 1", share);
  }
  if (share > 0 && !options.activation_checkpointing) {
    throw user_error("engine",
                     "activation_offload is {}, and without activation_checkpointing all "
                     "activations are kept, not boundaries alone; use activation_checkpointing, or "
                     "leave it out",
                     share);
  }
  if (share > 0 && !has_place) {
    throw user_error("engine",
                     "activation_offload is {}, and the CPU computes: boundaries lie in host "
                     "memory as it is; give a folder for them with --nvme_path, or leave it out",
                     share);
  }
  return options;
}

std::string activation_offload_text(const Model& model, const PlanInput& input,
                                    const MemoryPlan& plan,
                                    const std::optional<PlacementHardware>& hardware) {
  if (plan.leaving_boundaries == 0) {
    return "";
  }
  const std::size_t segments = model.segments.size();
  std::string text = fmt::format(
      "boundaries 1-{} of {} {} between forward and backward, {} (share {:.2f}{})",
      plan.leaving_boundaries, segments - 1, input.has_device() ? "in host memory" : "on NVMe",
      size_text(plan.leaving_bytes), boundary_share(plan.leaving_boundaries, segments),
      input.offload_chosen ? ", the smallest that fits" : "");
  if (!hardware) {
    return text;
  }
  PlacementProblem problem = placement_problem(model, input, *hardware, input.shape.engine.overlap);
  std::vector<StatePlacement> placements = input.shape.engine.placements;
  placements.resize(model.units.size(), StatePlacement::kHost);
  const double with_s = predict_step_s(problem, placements);
  for (PlacementSegment& segment : problem.segments) {
    segment.boundary = 0;
  }
  const double exposed_s = with_s - predict_step_s(problem, placements);
  const double micro_steps = input.shape.micro_steps;
  const double copies_s = micro_steps * static_cast<double>(plan.leaving_bytes) *
                          (1 / hardware->speeds.to_host + 1 / hardware->speeds.to_device);
  return text + fmt::format("; copies of {:.1f} ms in a step, {}", 1e3 * copies_s,
                            exposed_s > micro_steps * kUnnoticed
                                ? fmt::format("{:.1f} ms of it exposed", 1e3 * exposed_s)
                                : "hidden behind compute");
}

}  // namespace tandem
