// engine/rank/rank_state.cpp — what a rank's units hold: allocated by the plan's sizes; see
// rank.hpp.

#include <fmt/format.h>

#include "actors/kernels/update/state_memory.hpp"
#include "engine/rank/rank.hpp"

namespace tandem {

/// Where this rank's slice of a unit begins when the units are laid end to end, each from a state
/// block's boundary on: stochastic rounding counts from there, whatever the number of ranks.
std::uint64_t Rank::first_element(std::size_t unit) const {
  const ParameterLayout& own = layouts_[unit];
  auto begin = static_cast<std::uint64_t>(own.position_of(
      static_cast<std::int64_t>(own.block.shard_begin(sharding_.slice(model_.units[unit])))));
  for (std::size_t before = 0; before < unit; ++before) {
    const ParameterLayout& layout = layouts_[before];
    const auto elements = static_cast<std::uint64_t>(
        layout.position_of(static_cast<std::int64_t>(layout.block.padded_elements)));
    begin += (elements + kStateBlock - 1) / kStateBlock * kStateBlock;
  }
  return begin;
}

void Rank::allocate_weights(std::size_t unit) {
  const UnitLayout& layout = layouts_[unit].block;
  const std::size_t size = bytes_of(options_.type);
  Memory& memory = memory_[unit];
  const std::size_t block_bytes = layout.padded_elements * size;
  const bool updated_there = placement_of(unit) != StatePlacement::kHost;  // on the device
  if (sharding_.weights_replicated[unit] && accelerator_) {
    memory.block = allocate_on_device(
        block_bytes, fmt::format("the whole weights of unit \"{}\"", model_.units[unit].name));
  } else if (sharding_.weights_replicated[unit]) {
    memory.block = allocate_shared(block_bytes, resident_bytes_.weights);
  }
  if (memory.block != nullptr && (updated_there || !accelerator_)) {
    memory.shard = memory.block + layout.shard_begin(sharding_.slice(model_.units[unit])) * size;
  } else if (updated_there) {
    memory.shard =
        allocate_on_device(layout.shard_elements * size,
                           fmt::format("the weights of unit \"{}\"", model_.units[unit].name));
  } else {
    memory.shard = allocate_shared(layout.shard_elements * size, resident_bytes_.weights);
  }
}

void Rank::allocate_units() {
  for (std::size_t unit = 0; unit < layouts_.size(); ++unit) {
    const UnitSizes& sizes = sizes_.units[unit];
    Memory& memory = memory_.emplace_back();
    allocate_weights(unit);
    UpdateBuffers& buffers = memory.buffers;
    buffers = {.weight = options_.type == DType::kF32 ? nullptr : memory.shard,
               .weight_type = options_.type,
               .position = first_element(unit)};
    if (options_.type == DType::kF32) {
      buffers.master = memory.shard;
    }
    if (model_.units[unit].frozen()) {
      if (sizes.state.master > 0) {
        buffers.master = allocate(sizes.state.master, resident_bytes_.optimizer);
      }
      continue;
    }
    place_state(buffers, options_.state_layout, options_.update, options_.type,
                layouts_[unit].block.shard_elements, allocate_state(unit));
    memory.accumulator = allocate_accumulator(unit);
  }
}

void Rank::allocate_shadows() {
  for (const std::size_t unit : sizes_.shadows) {
    const StateSizes& sizes = sizes_.units[unit].state;
    const std::size_t elements = layouts_[unit].block.shard_elements;
    const StatePlacement placement = placement_of(unit);
    const std::string purpose =
        fmt::format("the second copy of unit \"{}\"", model_.units[unit].name);
    // Each array on the side of the one that it stands in for.
    const auto take = [&](std::size_t bytes, bool on_device) {
      return bytes == 0  ? nullptr
             : on_device ? allocate_on_device(bytes, purpose)
                         : allocate_streamed(bytes, resident_bytes_.shadows, placement);
    };
    const bool state_there = placement == StatePlacement::kDevice;
    const bool weight_there = placement != StatePlacement::kHost;
    UpdateShadow& shadow = memory_[unit].shadow;
    shadow.master = options_.type == DType::kF32 ? take(elements * sizeof(float), weight_there)
                                                 : take(sizes.master, state_there);
    for (std::size_t array = 0; array < 2; ++array) {
      shadow.state[array] = take(sizes.state[array], state_there);
      shadow.scale[array] = reinterpret_cast<std::uint8_t*>(take(sizes.scale[array], state_there));
    }
    if (memory_[unit].buffers.weight_is_half()) {
      shadow.weight = take(elements * bytes_of(options_.type), weight_there);
    }
  }
}

}  // namespace tandem
