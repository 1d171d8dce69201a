#include "engine/layout/rank_sizes.hpp"

#include <algorithm>

#include "actors/optimizer/device_updates.hpp"
#include "actors/optimizer/file_updates.hpp"
#include "engine/config/config.hpp"
#include "engine/layout/muon_matrices.hpp"
#include "engine/layout/step_plan.hpp"
#include "engine/layout/update_config.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {

constexpr std::size_t kGradientSlots = 2;  // one being filled, one being reduced

UnitSizes sizes_of(const UnitSpec& unit, const UnitLayout& layout, bool whole,
                   const RankShape& shape, DType accumulator_type, StatePlacement placement,
                   bool weights_on_nvme, bool alone) {
  const std::size_t elements = layout.shard_elements;
  const std::size_t floats = elements * sizeof(float);
  const std::size_t element = bytes_of(shape.type);
  UnitSizes sizes{.weights = (whole ? layout.padded_elements : elements) * element,
                  .shard = elements * element,
                  .weights_on_nvme = weights_on_nvme};
  if (unit.frozen()) {
    return sizes;  // its weights are all that there is of it
  }
  sizes.state = state_sizes(shape.engine.state_layout, shape.update, shape.type, elements);
  sizes.accumulator = elements * bytes_of(accumulator_type);
  // The next master, or the one before where it is the weight; of a split one also the weight's
  // half.
  const bool is_half = shape.engine.state_layout != StateLayout::kFp32 && shape.type != DType::kF32;
  const std::size_t backup = shape.type == DType::kF32 ? floats : is_half ? sizes.shard : 0;
  sizes.shadow = sizes.moments() + sizes.state.master + backup;
  sizes.placement = placement;
  sizes.gradient_on_device = updates_on_device(placement) && alone;
  sizes.shadow_on_device = placement == StatePlacement::kDevice     ? sizes.shadow
                           : placement == StatePlacement::kStreamed ? backup
                                                                    : 0;
  return sizes;
}

/// Bytes of a slice's arrays that lie on the host: master and moments, once more in the shadow, and
/// the gradient of several ranks.
std::size_t buffer_of(const UnitSizes& unit, const RankShape& shape, std::size_t elements,
                      DType accumulator_type) {
  const std::size_t slice = std::min(elements, kStreamedSliceElements);
  const std::size_t gradient =
      unit.gradient_on_device ? 0 : (slice * bytes_of(accumulator_type) + 63) / 64 * 64;
  const std::size_t state =
      unit.placement == StatePlacement::kStreamed
          ? 2 * state_sizes(shape.engine.state_layout, shape.update, shape.type, slice).total()
          : 0;
  return state + gradient;
}

std::size_t gather_slots_of(const SlotPools& weights, int asked) {
  const auto slots = static_cast<std::size_t>(std::max(asked, 0));
  if (slots > 0 && slots < weights.min_shared_slots) {
    throw user_error(
        "engine",
        "gather_slots is {}, and a segment of this model holds {} units at a time; use "
        "at least {}",
        asked, weights.min_shared_slots, weights.min_shared_slots);
  }
  // Chosen: what one segment holds, and as much again gathered ahead of it.
  return std::min(slots > 0 ? slots : 2 * weights.min_shared_slots + 1, weights.shared_units());
}

std::vector<PoolSizes> sizes_of(const SlotPools& pools, std::size_t shared_slots, DType type) {
  std::vector<PoolSizes> sizes;
  for (std::size_t pool = 0; pool < pools.pools(); ++pool) {
    sizes.push_back({.slots = pool == 0 ? shared_slots : 1,
                     .slot_bytes = pools.slot_elements[pool] * bytes_of(type)});
  }
  return sizes;
}

void count_directions(const UnitSpec& unit, const Sharding& sharding, const UnitLayout& layout,
                      RankSizes& sizes) {
  bool has_matrix = false;
  for (const ParameterSpec& parameter : unit.parameters) {
    if (is_orthogonalized(parameter)) {
      has_matrix = true;
      sizes.direction_scratch_bytes =
          std::max(sizes.direction_scratch_bytes,
                   matrices_of(parameter).shape.scratch_floats() * sizeof(float));
    }
  }
  if (has_matrix && sharding.world > 1) {
    sizes.direction_block_bytes =
        std::max(sizes.direction_block_bytes, layout.padded_elements * sizeof(float));
  }
}

/// Whether state on NVMe has a shadow in the file, where the old state stays as it is until the
/// verdict. Where the
/// weight is part of the state the old one would have to be written, too; weights on NVMe keep the
/// disk busy beside backward; and what is frozen would have to be copied at the start.
bool has_shadow_on_nvme(const UnitSpec& unit, const UnitSizes& sizes, const RankShape& shape) {
  return shape.engine.state_layout == StateLayout::kFp32 && shape.type != DType::kF32 &&
         !sizes.weights_on_nvme && std::ranges::none_of(unit.parameters, &ParameterSpec::frozen);
}

std::vector<std::size_t> shadows_of(const Model& model, const RankShape& shape,
                                    const SlotClasses& classes, const std::vector<UnitSizes>& units,
                                    std::size_t device_room) {
  if (shape.engine.units_ahead) {
    return *shape.engine.units_ahead;
  }
  std::vector<std::size_t> shadows;
  if (shape.shadows.units == 0) {
    return shadows;
  }
  const StepPlan plan = StepPlan::training(model, classes, 1);
  std::size_t on_host = 0;
  std::size_t on_device = 0;
  for (std::size_t v = 0; v + 1 < plan.visits.size(); ++v) {
    for (const UnitUse& use : plan.visits[v].uses) {
      const bool on_nvme = units[use.unit].placement == StatePlacement::kNvme;
      const std::size_t device = units[use.unit].shadow_on_device;
      const std::size_t host = on_nvme ? 0 : units[use.unit].shadow - device;
      const bool may_have =
          !on_nvme || has_shadow_on_nvme(model.units[use.unit], units[use.unit], shape);
      if (use.last_gradient && may_have && shadows.size() < shape.shadows.units &&
          on_host + host <= shape.shadows.bytes && on_device + device <= device_room) {
        on_host += host;
        on_device += device;
        shadows.push_back(use.unit);
      }
    }
  }
  return shadows;
}

}  // namespace

RankShape RankShape::of(const Config& config, const EngineOptions& options) {
  return {
      .engine = options,
      .type = compute_type(config.precision()),
      .micro_steps = static_cast<int>(std::max<std::int64_t>(1, config.batch.accumulation_steps)),
      .update = update_config(config.optimizer),
      // A joint update is not begun ahead of the verdict.
      .shadows = updates_jointly(config.optimizer.kind)
                     ? ShadowBudget()
                     : ShadowBudget::of(options, config.world_size)};
}

ShadowBudget ShadowBudget::of(const EngineOptions& options, std::int64_t world_size) {
  if (!may_speculate(options)) {
    return {};
  }
  if (options.inflight_buckets > 0) {
    return {.units = static_cast<std::size_t>(options.inflight_buckets), .bytes = SIZE_MAX};
  }
  // It is not known what else the run takes, so a quarter.
  return {.units = SIZE_MAX,
          .bytes = machine::memory_available_bytes() / 4 / static_cast<std::uint64_t>(world_size)};
}

std::int64_t ShadowBudget::room_of(std::int64_t memory_bytes, std::int64_t left_bytes) {
  const std::int64_t little = std::min(memory_bytes / 4, left_bytes);
  return std::max<std::int64_t>({0, little, left_bytes - memory_bytes / 10});
}

std::size_t RankSizes::device_bytes_of(std::size_t unit) const {
  const UnitSizes& sizes = units[unit];
  if (!updates_on_device(sizes.placement)) {
    return 0;
  }
  return (weights_replicated[unit] ? 0 : sizes.weights) +
         (sizes.gradient_on_device ? sizes.accumulator : 0) +
         (sizes.placement == StatePlacement::kDevice ? sizes.state.total() : 0);
}

std::size_t RankSizes::device_bytes() const {
  std::size_t bytes =
      device_base_bytes + DeviceUpdates::kSlices * (stream_buffer_bytes + resident_buffer_bytes);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    bytes += device_bytes_of(unit);
  }
  for (const std::size_t unit : shadows) {
    bytes += units[unit].shadow_on_device;
  }
  return bytes;
}

std::vector<bool> RankSizes::weights_on_nvme(const Model& model, const RankShape& shape,
                                             const Sharding& sharding) {
  std::vector<bool> on_nvme(model.units.size());
  std::int64_t room = shape.engine.nvme.weights_in_memory.value_or(INT64_MAX);
  for (std::size_t unit = 0; unit < on_nvme.size(); ++unit) {
    room -= static_cast<std::int64_t>(sharding.layout_of(model.units[unit]).shard_elements);
    on_nvme[unit] = room < 0 && !sharding.weights_replicated[unit];
    room = std::max<std::int64_t>(room, -1);  // what is behind lies there, too
    if (on_nvme[unit] && model.units[unit].ep_size > 1) {
      throw user_error("engine",
                       "weights are to lie on NVMe, and the experts of unit \"{}\" are spread over "
                       "{} ranks; use an expert-parallel size of 1, or offload_param \"cpu\"",
                       model.units[unit].name, model.units[unit].ep_size);
    }
  }
  return on_nvme;
}

void RankSizes::count_on_nvme(const UnitSizes& unit, std::size_t elements, const RankShape& shape) {
  const std::size_t slice = std::min(elements, FileUpdates::kElementsAlignment);
  const StateSizes of_slice =
      state_sizes(shape.engine.state_layout, shape.update, shape.type, slice);
  std::size_t bytes = unit.state.total(kFileStateAlignment);
  std::size_t buffer = of_slice.total(kFileStateAlignment);
  if (unit.weights_on_nvme) {
    const auto in_blocks = [](std::size_t size) { return round_up(size, kFileStateAlignment); };
    bytes += in_blocks(unit.shard) + in_blocks(unit.accumulator);
    buffer +=
        in_blocks(slice * bytes_of(shape.type)) + in_blocks(slice * bytes_of(accumulator_type));
  }
  nvme_file_bytes += bytes;
  nvme_copy_bytes = std::max(nvme_copy_bytes, bytes);
  nvme_buffer_bytes = std::max(nvme_buffer_bytes, buffer);
}

void RankSizes::count_nvme_buffers(bool straight, bool is_kept) {
  std::size_t shard = 0;
  std::size_t accumulator = 0;
  for (const UnitSizes& unit : units) {
    shard = std::max(shard, unit.weights_on_nvme ? unit.shard : 0);
    accumulator = std::max(accumulator, unit.weights_on_nvme ? unit.accumulator : 0);
  }
  if (shard == 0) {
    return;
  }
  nvme_shard_bytes = straight ? 0 : round_up(shard, kFileStateAlignment);
  nvme_accumulator_bytes = straight && is_kept ? 0 : round_up(accumulator, kFileStateAlignment);
  for (auto* pools : {&weight_pools, &gradient_pools}) {
    for (PoolSizes& pool : *pools) {
      pool.slot_bytes = round_up(pool.slot_bytes, kFileStateAlignment);
    }
  }
}

RankSizes RankSizes::of(const Model& model, const RankShape& shape, const Sharding& sharding,
                        const SlotClasses& classes) {
  RankSizes sizes;
  // A joint update writes its direction there.
  const bool is_kept =
      shape.micro_steps == 1 && sharding.world == 1 && !updates_jointly(shape.update.kind);
  sizes.accumulator_type = is_kept ? shape.type : DType::kF32;
  sizes.accumulators_shared = !sharding.state_sharded;
  sizes.weights_replicated = sharding.weights_replicated;
  const std::vector<bool> on_nvme = weights_on_nvme(model, shape, sharding);
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    const UnitLayout layout = sharding.layout_of(model.units[unit]);
    const StatePlacement placement = on_nvme[unit] ? StatePlacement::kNvme
                                     : unit < shape.engine.placements.size()
                                         ? shape.engine.placements[unit]
                                         : StatePlacement::kHost;
    sizes.units.push_back(sizes_of(model.units[unit], layout, sharding.weights_replicated[unit],
                                   shape, sizes.accumulator_type, placement, on_nvme[unit],
                                   sharding.world == 1));
    const UnitSizes& made = sizes.units.back();
    if (made.placement == StatePlacement::kNvme || made.weights_on_nvme) {
      sizes.count_on_nvme(made, layout.shard_elements, shape);
    } else if (made.placement != StatePlacement::kHost) {
      std::size_t& buffer = made.placement == StatePlacement::kStreamed
                                ? sizes.stream_buffer_bytes
                                : sizes.resident_buffer_bytes;
      buffer =
          std::max(buffer, buffer_of(made, shape, layout.shard_elements, sizes.accumulator_type));
    }
    sizes.device_base_bytes += sharding.weights_replicated[unit] ? made.weights : 0;
    if (shape.update.kind == OptimizerKind::kMuon) {
      count_directions(model.units[unit], sharding, layout, sizes);
    }
  }
  const SlotPools& gradients = classes.gradients;
  sizes.gather_slots = gather_slots_of(classes.weights, shape.engine.gather_slots);
  sizes.weight_pools = sizes_of(classes.weights, sizes.gather_slots, shape.type);
  sizes.gradient_pools = sizes_of(
      gradients,
      std::min(gradients.shared_units(), std::max(kGradientSlots, gradients.min_shared_slots + 1)),
      shape.type);
  const bool on_cpu = shape.engine.device == DeviceKind::kCpu;
  sizes.count_nvme_buffers(on_cpu && sharding.world == 1, is_kept);
  for (const auto* pools : {&sizes.weight_pools, &sizes.gradient_pools}) {
    for (const PoolSizes& pool : *pools) {
      sizes.device_base_bytes += pool.bytes();
    }
  }
  // Shadows get nothing of the device that is used otherwise, and a quarter of it at most where no
  // plan has counted the activations.
  const std::size_t used = std::min(shape.device_bytes, sizes.device_bytes());
  const bool is_planned = shape.shadows.device_bytes != SIZE_MAX;
  const std::size_t most = is_planned ? SIZE_MAX : shape.device_bytes / 4;
  const std::size_t room =
      shape.device_bytes == 0 ? SIZE_MAX : std::min(most, shape.device_bytes - used);
  sizes.shadows =
      shadows_of(model, shape, classes, sizes.units, std::min(room, shape.shadows.device_bytes));
  for (const std::size_t unit : sizes.shadows) {
    if (sizes.units[unit].placement == StatePlacement::kNvme) {
      sizes.nvme_file_bytes += sizes.units[unit].state.total(kFileStateAlignment);
    }
  }
  return sizes;
}

}  // namespace tandem
