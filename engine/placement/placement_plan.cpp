#include "engine/placement/placement_plan.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "actors/optimizer/device_updates.hpp"
#include "actors/optimizer/file_updates.hpp"
#include "engine/memory/host_buffers.hpp"
#include "engine/metrics/flops.hpp"
#include "engine/placement/placement.hpp"

namespace tandem {
namespace {

RankSizes sizes_with(const Model& model, const PlanInput& input, const Sharding& sharding,
                     const SlotClasses& classes, StatePlacement placement) {
  RankShape shape = input.shape;
  shape.engine.placements.assign(model.units.size(), placement);
  shape.device_bytes = 0;  // second copies as if there were room
  return RankSizes::of(model, shape, sharding, classes);
}

double slice_share(std::size_t slice, std::size_t shard) {
  return std::min(
      1.0, static_cast<double>(slice) / static_cast<double>(std::max<std::size_t>(1, shard)));
}

}  // namespace

PlacementSegment placement_segment(const Model& model, const PlanInput& input,
                                   const PlacementHardware& hardware, std::size_t s) {
  const SegmentSpec& spec = model.segments[s];
  PlacementSegment segment{.units = units_of(spec)};
  if (spec.cost.seconds) {
    segment.forward_s = spec.cost.seconds(false);
    segment.backward_s = spec.cost.seconds(true);
    return segment;
  }
  const SegmentShape shape = segment_shape(model, s);
  const bool recomputes =
      input.shape.engine.activation_checkpointing && s + 1 < model.segments.size();
  const auto seconds = [&](double flops) {
    return hardware.latency_s +
           flops / static_cast<double>(input.sharers) / hardware.compute_flops_per_s;
  };
  segment.forward_s = seconds(forward_flops(shape, input.rows, input.length, CountedKeys::kSeen));
  segment.backward_s =
      seconds(backward_flops(shape, input.rows, input.length, recomputes, CountedKeys::kSeen));
  return segment;
}

HostUpdateSpeeds HostUpdateSpeeds::of(UpdateKernel kernel, bool speculates) {
  HostUpdateSpeeds speeds{.in_place = update_speed(kernel)};
  if (speculates) {
    kernel.speculative = true;
    speeds.speculative = update_speed(kernel);
  }
  return speeds;
}

PlacementHardware PlacementHardware::of(const SimSpec& spec, const HostUpdateSpeeds& host) {
  return {.speeds = {.host_update = host.in_place,
                     .host_update_speculative = host.speculative,
                     .to_device = spec.to_device_bytes_per_s,
                     .to_host = spec.to_host_bytes_per_s,
                     .device_memory = spec.memory_bytes_per_s},
          .compute_flops_per_s = spec.compute_flops_per_s,
          .latency_s = spec.latency_s,
          .memory_bytes = spec.memory_bytes};
}

PlacementProblem placement_problem(const Model& model, const PlanInput& input,
                                   const PlacementHardware& hardware, Overlap overlap) {
  const Sharding sharding =
      Sharding::of(model, input.zero, static_cast<std::uint32_t>(input.world_size), 0);
  const SlotClasses classes = SlotClasses::of(model, sharding);
  const RankSizes host = sizes_with(model, input, sharding, classes, StatePlacement::kHost);
  const RankSizes device = sizes_with(model, input, sharding, classes, StatePlacement::kDevice);
  const RankSizes streamed = sizes_with(model, input, sharding, classes, StatePlacement::kStreamed);
  const RankSizes on_nvme = sizes_with(model, input, sharding, classes, StatePlacement::kNvme);
  const auto is_in = [](const std::vector<std::size_t>& shadows, std::size_t unit) {
    return std::ranges::find(shadows, unit) != shadows.end();
  };
  PlacementProblem problem{
      .speeds = hardware.speeds,
      .overlap = overlap,
      .micro_steps = static_cast<int>(input.shape.micro_steps),
      .gather_slots = std::max<std::size_t>(1, host.gather_slots),
      .is_alone = input.world_size == 1,
      .device_bytes = hardware.memory_bytes -
                      static_cast<double>(host.device_base_bytes +
                                          DeviceUpdates::kSlices * device.resident_buffer_bytes),
      .device_buffer_bytes =
          static_cast<double>(DeviceUpdates::kSlices * streamed.stream_buffer_bytes)};
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const UnitLayout layout = sharding.layout_of(model.units[unit]);
    const UnitSizes& sizes = host.units[unit];
    const auto shard = static_cast<double>(layout.shard_elements);
    const auto whole = static_cast<double>(layout.padded_elements * bytes_of(input.shape.type));
    const double state = static_cast<double>(sizes.state.master + sizes.moments());
    const double weight =
        input.shape.type == DType::kF32 ? 2.0 * sizeof(float) : 1.0 * bytes_of(input.shape.type);
    problem.units.push_back(
        {.weights = whole,
         .gradient = whole,
         .accumulator = static_cast<double>(sizes.accumulator),
         .update = 2 * state + static_cast<double>(sizes.accumulator) + shard * weight,
         .state_in = state,
         .streamed_slice = slice_share(kStreamedSliceElements, layout.shard_elements),
         .nvme_slice = slice_share(FileUpdates::kElementsAlignment, layout.shard_elements),
         .optimizer = state,
         .on_host = state + static_cast<double>(sizes.accumulator + sizes.shard),
         .on_device = static_cast<double>(device.device_bytes_of(unit)),
         .when_streamed = static_cast<double>(streamed.device_bytes_of(unit)),
         .is_movable = !model.units[unit].frozen(),
         .has_shadow = is_in(host.shadows, unit),
         .has_shadow_on_nvme = is_in(on_nvme.shadows, unit),
         .is_replicated = sharding.weights_replicated[unit]});
  }
  for (std::size_t s = 0; s < model.segments.size(); ++s) {
    problem.segments.push_back(placement_segment(model, input, hardware, s));
  }
  const MemoryPlan plan = plan_memory(model, input);
  for (std::size_t b = 1; b <= plan.leaving_boundaries; ++b) {
    problem.segments[b].boundary =
        static_cast<double>(plan.leaving_bytes) / static_cast<double>(plan.leaving_boundaries);
  }
  return problem;
}

void bound_memory(PlacementProblem& problem, const Model& model, const PlanInput& input,
                  const MemoryLimits& limits) {
  PlanInput all_here = input;
  all_here.shape.engine.placements.assign(model.units.size(), StatePlacement::kHost);
  const MemoryPlan on_host = plan_memory(model, all_here);
  if (limits.device) {
    problem.device_bytes =
        static_cast<double>(limits.device->bytes - on_host.total(MemoryKind::kDevice));
  }
  if (limits.host) {
    problem.host_buffer_bytes = static_cast<double>(most_host_buffer_bytes(model, input));
    problem.host_bytes = static_cast<double>(limits.host->bytes - on_host.host_total()) /
                             static_cast<double>(on_host.ranks_per_host) +
                         problem.host_bytes_of(all_here.shape.engine.placements);
  }
}

UpdateKernel update_kernel_of(const PlanInput& input, int optimizer_threads) {
  const bool is_kept = input.shape.micro_steps == 1 && input.world_size == 1;
  return {.update = input.shape.update,
          .layout = input.shape.engine.state_layout,
          .weight = input.shape.type,
          .gradient = is_kept ? input.shape.type : DType::kF32,
          .threads = optimizer_threads};
}

HostUpdateSpeeds host_update_speeds(const PlanInput& input, int optimizer_threads) {
  return HostUpdateSpeeds::of(update_kernel_of(input, optimizer_threads),
                              input.shape.shadows.units > 0);
}

PlannedPlacement plan_placement(const Model& model, const PlacementProblem& problem,
                                Placement placement, std::optional<double> ratio) {
  PlannedPlacement plan;
  if (placement == Placement::kAuto && !ratio) {
    PlacementChoice choice = choose_placements(problem);
    plan.placements = std::move(choice.placements);
    plan.chosen = true;
  } else {
    plan.placements = forced_placements(model, placement, ratio);
    plan.placements.resize(problem.units.size(), StatePlacement::kHost);
  }
  plan.step_s = predict_step_s(problem, plan.placements);
  plan.host_step_s = predict_step_s(
      problem, std::vector<StatePlacement>(problem.units.size(), StatePlacement::kHost));
  double all = 0;
  double there = 0;
  for (std::size_t unit = 0; unit < problem.units.size(); ++unit) {
    all += problem.units[unit].optimizer;
    there += plan.placements[unit] == StatePlacement::kDevice ? problem.units[unit].optimizer : 0;
  }
  plan.host_ratio = all > 0 ? 1 - there / all : 1;
  return plan;
}

std::string PlannedPlacement::text(const Model& model) const {
  std::string text = placements_text(model, placements);
  const bool all_host = std::ranges::all_of(
      placements, [](StatePlacement placement) { return placement == StatePlacement::kHost; });
  text += fmt::format("; a step of {:.1f} ms predicted", 1e3 * step_s);
  if (!all_host) {
    text += fmt::format(" ({:.1f} ms with all on the host), {:.0f} % of the state in host memory",
                        1e3 * host_step_s, 100 * host_ratio);
  }
  return text;
}

}  // namespace tandem
