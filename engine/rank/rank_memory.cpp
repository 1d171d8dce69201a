#include "engine/rank/rank_memory.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "actors/collectives/staged_backend.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/optimizer/file_updates.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {

constexpr std::size_t kTouchedBytes = std::size_t{64} << 20;  // by one thread at a time

}  // namespace

RankMemory::RankMemory(const RankLayout& layout, CollectiveBackend& backend,
                       Accelerator* accelerator, bool has_memory)
    : layout_(layout), backend_(backend), accelerator_(accelerator), has_memory_(has_memory) {
  allocate_save_buffers();
  allocate_nvme();
  units_.resize(layout.model.units.size());
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    allocate_unit(unit);
  }
  for (const std::size_t unit : layout.sizes.shadows) {
    allocate_shadow(unit);
  }
  allocate_directions();
  allocate_slots();
}

Task<> RankMemory::touch(CpuPool* pool) {
  struct Range {
    const HostBuffer* buffer;
    std::size_t begin;
    std::size_t end;
  };
  std::vector<Range> ranges;  // one unit's buffer may be half of all memory
  for (const HostBuffer& buffer : owned_) {
    for (std::size_t begin = 0; begin < buffer.size_bytes(); begin += kTouchedBytes) {
      ranges.push_back({&buffer, begin, std::min(begin + kTouchedBytes, buffer.size_bytes())});
    }
  }
  const auto touch_range = [&ranges](std::size_t i) {
    ranges[i].buffer->touch(ranges[i].begin, ranges[i].end);
  };
  co_await pool->for_chunks(ranges.size(), touch_range, {.name = "touch memory"});
}

ResidentBytes RankMemory::resident_bytes() const noexcept {
  ResidentBytes bytes = resident_bytes_;
  if (accelerator_ != nullptr) {
    bytes.staging += accelerator_->staging_bytes();
    bytes.device = accelerator_->used_bytes();
  }
  return bytes;
}

std::byte* RankMemory::allocate(std::size_t bytes, std::size_t& counted) {
  counted += bytes;
  return owned_.emplace_back(bytes, HostBuffer::Options{.has_memory = has_memory_}).data();
}

std::byte* RankMemory::allocate_shared(std::size_t bytes, std::size_t& counted) {
  counted += bytes;
  return backend_.allocate(bytes);
}

std::byte* RankMemory::allocate_streamed(std::size_t bytes, std::size_t& counted,
                                         StatePlacement placement) {
  const bool on_gpu = accelerator_ != nullptr && !accelerator_->is_simulated();
  return on_gpu && placement == StatePlacement::kStreamed ? allocate_shared(bytes, counted)
                                                          : allocate(bytes, counted);
}

/// Buffers for the largest slice that is gathered to be saved, where the back end reads registered
/// memory only.
void RankMemory::allocate_save_buffers() {
  if (accelerator_ == nullptr || dynamic_cast<StagedBackend*>(&backend_) != nullptr) {
    return;
  }
  std::size_t largest = 0;
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    if (layout_.sharding.is_sharded(layout_.model.units[unit])) {
      largest = std::max(largest, layout_.slice_elements(unit));
    }
  }
  if (largest > 0) {
    const auto floats = [this](std::size_t count) {
      return std::span(reinterpret_cast<float*>(backend_.allocate(count * sizeof(float))), count);
    };
    slice_buffer_ = floats(largest);
    whole_buffer_ = floats(largest * layout_.sharding.world);
  }
}

std::string RankMemory::purpose(std::string_view what, std::size_t unit) const {
  return fmt::format("the {} of unit \"{}\"", what, layout_.model.units[unit].name);
}

void RankMemory::allocate_weights(std::size_t unit) {
  const std::size_t size = bytes_of(layout_.shape.type);
  const std::size_t block_bytes = layout_.parameters[unit].block.padded_elements * size;
  const std::size_t shard_bytes = layout_.slice_elements(unit) * size;
  const bool updated_there = updates_on_device(layout_.placement_of(unit));
  UnitMemory& memory = units_[unit];
  if (layout_.sizes.units[unit].weights_on_nvme) {
    memory.shard = allocate_in_file(shard_bytes);
    return;
  }
  if (layout_.sharding.weights_replicated[unit]) {
    memory.block = accelerator_ != nullptr
                       ? allocate_on_device(block_bytes, purpose("whole weights", unit))
                       : Placed(allocate_shared(block_bytes, resident_bytes_.weights));
  }
  if (memory.block != nullptr && (updated_there || accelerator_ == nullptr)) {
    memory.shard = memory.block + layout_.slice_begin(unit) * size;
  } else if (updated_there) {
    memory.shard = allocate_on_device(shard_bytes, purpose("weights", unit));
  } else {
    memory.shard = allocate_shared(shard_bytes, resident_bytes_.weights);
  }
}

void RankMemory::allocate_unit(std::size_t unit) {
  allocate_weights(unit);
  const RankShape& shape = layout_.shape;
  UnitMemory& memory = units_[unit];
  PlacedBuffers& buffers = memory.buffers;
  const bool weight_is_master = shape.type == DType::kF32;
  buffers = {.weight_type = shape.type, .position = layout_.first_element(unit)};
  (weight_is_master ? buffers.master : buffers.weight) = memory.shard;
  if (layout_.model.units[unit].frozen()) {
    return;
  }
  place_state(
      buffers, shape.engine.state_layout, shape.update, shape.type, layout_.slice_elements(unit),
      allocate_state(unit),
      layout_.placement_of(unit) == StatePlacement::kNvme ? kFileStateAlignment : kStateAlignment);
  memory.accumulator = allocate_accumulator(unit);
}

void RankMemory::allocate_nvme() {
  const RankSizes& sizes = layout_.sizes;
  if (sizes.nvme_file_bytes > 0) {
    state_file_ = std::make_unique<StateFile>(sizes.nvme_file_bytes);
    nvme_buffers_ =
        allocate(FileUpdates::kSlices * sizes.nvme_buffer_bytes, resident_bytes_.staging);
  }
  if (sizes.nvme_shard_bytes > 0) {
    nvme_shard_buffer_ = allocate_shared(sizes.nvme_shard_bytes, resident_bytes_.staging);
  }
  if (sizes.nvme_accumulator_bytes > 0) {
    nvme_accumulator_buffer_ =
        allocate_shared(sizes.nvme_accumulator_bytes, resident_bytes_.staging);
  }
}

Placed<std::byte> RankMemory::allocate_in_file(std::size_t bytes) {
  if (state_file_ == nullptr) {
    return nullptr;  // of nothing
  }
  const Placed<std::byte> there = state_file_->data() + in_state_file_;
  in_state_file_ += round_up(bytes, kFileStateAlignment);
  TANDEM_CHECK_LE(in_state_file_, state_file_->size_bytes(), "the plan has room in the file");
  return there;
}

Task<> RankMemory::open_state_file(StateFile::Options options) {
  TANDEM_CHECK(state_file_ != nullptr, "something of the rank lies on NVMe");
  options.piece_bytes = layout_.shape.engine.nvme.block_bytes;
  co_await state_file_->open(std::move(options));
}

/// Memory of master and moments, on the side that the unit's placement says.
Placed<std::byte> RankMemory::allocate_state(std::size_t unit) {
  const StatePlacement placement = layout_.placement_of(unit);
  if (placement == StatePlacement::kNvme) {
    return allocate_in_file(layout_.sizes.units[unit].state.total(kFileStateAlignment));
  }
  const std::size_t bytes = layout_.sizes.units[unit].state.total();
  return placement == StatePlacement::kDevice
             ? allocate_on_device(bytes, purpose("optimizer state", unit))
             : Placed(allocate_streamed(bytes, resident_bytes_.optimizer, placement));
}

Placed<std::byte> RankMemory::allocate_accumulator(std::size_t unit) {
  const std::size_t bytes = layout_.sizes.units[unit].accumulator;
  if (layout_.sizes.units[unit].weights_on_nvme) {
    return allocate_in_file(bytes);
  }
  if (layout_.sizes.units[unit].gradient_on_device) {
    return allocate_on_device(bytes, purpose("gradient", unit));
  }
  // A device copies gradients straight into it.
  return layout_.sizes.accumulators_shared || accelerator_ != nullptr
             ? allocate_shared(bytes, resident_bytes_.gradients)
             : allocate(bytes, resident_bytes_.gradients);
}

/// Each array in the place of the one that it stands in for.
void RankMemory::allocate_shadow(std::size_t unit) {
  const StateSizes& sizes = layout_.sizes.units[unit].state;
  const std::size_t elements = layout_.slice_elements(unit);
  const StatePlacement placement = layout_.placement_of(unit);
  const auto take = [&](std::size_t bytes, bool on_device) -> Placed<void> {
    if (bytes == 0) {
      return nullptr;
    }
    if (placement == StatePlacement::kNvme) {
      return allocate_in_file(bytes);
    }
    if (on_device) {
      return allocate_on_device(bytes, purpose("second copy", unit));
    }
    return Placed(allocate_streamed(bytes, resident_bytes_.shadows, placement));
  };
  const bool state_there = placement == StatePlacement::kDevice;
  const bool weight_there = updates_on_device(placement);
  const DType type = layout_.shape.type;
  PlacedShadow& shadow = units_[unit].shadow;
  shadow.master = type == DType::kF32 ? take(elements * sizeof(float), weight_there)
                                      : take(sizes.master, state_there);
  for (std::size_t array = 0; array < 2; ++array) {
    shadow.state[array] = take(sizes.state[array], state_there);
    shadow.scale[array] = Placed<std::uint8_t>(take(sizes.scale[array], state_there));
  }
  if (units_[unit].buffers.weight_is_half()) {
    shadow.weight = take(elements * bytes_of(type), weight_there);
  }
}

void RankMemory::allocate_directions() {
  if (const std::size_t bytes = layout_.sizes.direction_block_bytes; bytes > 0) {
    direction_block_ = reinterpret_cast<float*>(allocate_shared(bytes, resident_bytes_.optimizer));
  }
  if (const std::size_t bytes = layout_.sizes.direction_scratch_bytes; bytes > 0) {
    direction_scratch_ = {reinterpret_cast<float*>(allocate(bytes, resident_bytes_.optimizer)),
                          bytes / sizeof(float)};
  }
}

void RankMemory::allocate_slots() {
  const auto allocate_pools = [this](const SlotPools& pools, std::span<const PoolSizes> sizes,
                                     std::string_view name, const auto& allocate_on_host) {
    std::vector<Placed<std::byte>> slots;
    TANDEM_CHECK_EQ(sizes.size(), pools.pools(), "every pool has its sizes");
    for (std::size_t pool = 0; pool < sizes.size(); ++pool) {
      const std::size_t bytes = sizes[pool].bytes();
      slots.push_back(sizes[pool].slots == 0    ? Placed<std::byte>()
                      : accelerator_ != nullptr ? slots_on_device(pools, pool, name, bytes)
                                                : Placed(allocate_on_host(bytes)));
    }
    return slots;
  };
  weight_slots_ = allocate_pools(
      layout_.classes.weights, layout_.sizes.weight_pools, "gather slots",
      [this](std::size_t bytes) { return allocate(bytes, resident_bytes_.weights); });
  gradient_slots_ = allocate_pools(
      layout_.classes.gradients, layout_.sizes.gradient_pools, "gradient slots",
      [this](std::size_t bytes) { return allocate_shared(bytes, resident_bytes_.gradients); });
}

Placed<std::byte> RankMemory::slots_on_device(const SlotPools& pools, std::size_t pool,
                                              std::string_view name, std::size_t bytes) {
  std::string_view largest;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (pools.pool_of[unit] == pool &&
        layout_.parameters[unit].block.padded_elements == pools.slot_elements[pool]) {
      largest = layout_.model.units[unit].name;
    }
  }
  return allocate_on_device(bytes, fmt::format("{}, each as large as unit \"{}\"", name, largest));
}

}  // namespace tandem
