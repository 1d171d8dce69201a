// engine/rank_state.cpp — what a rank's units hold: allocated by the plan's sizes, loaded, and read back; see rank.hpp.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/state_memory.hpp"
#include "engine/rank.hpp"
#include "engine/segment_runner.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kLoadChunkElements = 1 << 22;

}  // namespace

/// Where this rank's slice of a unit begins when the units are laid end to end, each from a state block's border on:
/// random rounding counts from there, whatever the number of ranks.
std::uint64_t Rank::first_element(std::size_t unit) const {
  std::uint64_t begin = layouts_[unit].block.shard_begin(residency_.slice());
  for (std::size_t before = 0; before < unit; ++before) {
    const auto elements = static_cast<std::uint64_t>(model_.units[before].numel());
    begin += (elements + kStateBlock - 1) / kStateBlock * kStateBlock;
  }
  return begin;
}

void Rank::allocate_weights(std::size_t unit) {
  const UnitLayout& layout = layouts_[unit].block;
  const std::size_t size = bytes_of(options_.type);
  Memory& memory = memory_[unit];
  const std::size_t block_bytes = layout.padded_elements * size;
  const bool updated_there = place_of(unit) != StatePlace::kHost;  // on the device
  if (residency_.whole[unit] && accelerator_) {
    memory.block = allocate_on_device(
        block_bytes, fmt::format("the whole weights of unit \"{}\"", model_.units[unit].name));
  } else if (residency_.whole[unit]) {
    memory.block = allocate_shared(block_bytes, resident_bytes_.weights);
  }
  if (memory.block != nullptr && (updated_there || !accelerator_)) {
    memory.shard = memory.block + layout.shard_begin(residency_.slice()) * size;
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

void Rank::allocate_twins() {
  for (const std::size_t unit : sizes_.twins) {
    const StateSizes& sizes = sizes_.units[unit].state;
    const std::size_t elements = layouts_[unit].block.shard_elements;
    const StatePlace place = place_of(unit);
    const std::string purpose =
        fmt::format("the second copy of unit \"{}\"", model_.units[unit].name);
    // Each array on the side of the one that it stands in for.
    const auto take = [&](std::size_t bytes, bool on_device) {
      return bytes == 0  ? nullptr
             : on_device ? allocate_on_device(bytes, purpose)
                         : allocate(bytes, resident_bytes_.twins);
    };
    const bool state_there = place == StatePlace::kDevice;
    const bool weight_there = place != StatePlace::kHost;
    UpdateTwin& twin = memory_[unit].twin;
    twin.master = options_.type == DType::kF32 ? take(elements * sizeof(float), weight_there)
                                               : take(sizes.master, state_there);
    for (std::size_t array = 0; array < 2; ++array) {
      twin.state[array] = take(sizes.state[array], state_there);
      twin.scale[array] = reinterpret_cast<std::uint8_t*>(take(sizes.scale[array], state_there));
    }
    if (memory_[unit].buffers.weight_is_half()) {
      twin.weight = take(elements * bytes_of(options_.type), weight_there);
    }
  }
}

void Rank::load_weights() {
  struct Piece {
    const ParameterSpec* parameter;
    std::int64_t begin;  // in the parameter
    std::int64_t end;
    std::size_t unit;
    std::size_t at;  // in the unit's slice
  };
  std::vector<Piece> pieces;
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    const UnitLayout& layout = layouts_[unit].block;
    const auto slice_begin = static_cast<std::int64_t>(layout.shard_begin(residency_.slice()));
    const auto slice_end = slice_begin + static_cast<std::int64_t>(layout.shard_elements);
    for (std::size_t i = 0; i < model_.units[unit].parameters.size(); ++i) {
      const ParameterSpec& parameter = model_.units[unit].parameters[i];
      const std::int64_t offset = layouts_[unit].offsets[i];
      const std::int64_t last = std::min(parameter.numel(), slice_end - offset);
      for (std::int64_t begin = std::max<std::int64_t>(0, slice_begin - offset); begin < last;
           begin += kLoadChunkElements) {
        pieces.push_back({&parameter, begin, std::min(begin + kLoadChunkElements, last), unit,
                          static_cast<std::size_t>(offset + begin - slice_begin)});
      }
    }
  }
  const auto load = [&](std::size_t i) {
    const Piece& piece = pieces[i];
    const UpdateBuffers& buffers = memory_[piece.unit].buffers;
    if (float* master = buffers.whole_master()) {
      model_.source(*piece.parameter, piece.begin, piece.end, master + piece.at);
      return;
    }
    std::vector<float> values(static_cast<std::size_t>(piece.end - piece.begin));
    model_.source(*piece.parameter, piece.begin, piece.end, values.data());
    write_master(buffers, values.data(), piece.at, piece.at + values.size());
  };
  const auto complete = [&](std::size_t unit) { complete_state(unit); };
  // Here and not in the first steps, by the threads that will work on it: near them, and no page is missing later.
  const auto touch = [&](std::size_t i) { owned_[i].touch(); };
  const auto prepare = [&] {
    if (!options_.compute_cores.empty()) {
      bind_thread(options_.compute_cores);  // the team that ATen makes later inherits it
    }
    prepare_compute_thread(options_.compute_threads);
    if (accelerator_ && accelerator_->compute() != nullptr) {
      accelerator_->compute()->prepare_thread();
    }
  };
  loop_.run(
      [](Rank* self, std::size_t count, const decltype(load)* load_piece,
         const decltype(complete)* complete_unit, const decltype(prepare)* prepare_lane,
         const decltype(touch)* touch_buffer) -> Task<> {
        co_await self->lane_.run(*prepare_lane);
        co_await self->optimizer_pool_.for_chunks(self->owned_.size(), *touch_buffer);
        co_await self->link_pool_.for_chunks(count, *load_piece);
        co_await self->link_pool_.for_chunks(self->model_.units.size(), *complete_unit);
      },
      this, pieces.size(), &load, &complete, &prepare, &touch);
}

/// Once a unit's masters are loaded: the weights that are cast from them, and the twin.
void Rank::complete_state(std::size_t unit) {
  const UpdateBuffers& buffers = memory_[unit].buffers;
  const UpdateTwin& twin = memory_[unit].twin;
  const StateSizes& sizes = sizes_.units[unit].state;
  const std::size_t elements = layouts_[unit].block.shard_elements;
  if (options_.type != DType::kF32 && buffers.whole_master() != nullptr) {
    cast(buffers.master, DType::kF32, buffers.weight, options_.type, 0, elements);
  }
  if (twin.master == nullptr) {
    return;
  }
  // Frozen parameters and padding are in no update, and must be there when the two are swapped.
  std::memcpy(twin.master, buffers.master,
              options_.type == DType::kF32 ? elements * sizeof(float) : sizes.master);
  for (std::size_t array = 0; array < 2; ++array) {
    if (sizes.state[array] > 0) {
      std::memcpy(twin.state[array], buffers.state[array], sizes.state[array]);
    }
    if (sizes.scale[array] > 0) {
      std::memcpy(twin.scale[array], buffers.scale[array], sizes.scale[array]);
    }
  }
}

std::span<const float> Rank::slice_of(std::size_t unit, State state) {
  const std::size_t elements = layouts_[unit].block.shard_elements;
  if (state == State::kMaster) {
    const UpdateBuffers& now = optimizer_->state_of(unit).buffers;
    // Collectives of the host read it, so it is copied where it lies on the device.
    const float* master = now.whole_master();
    if (master != nullptr && !(accelerator_ && accelerator_->holds(master))) {
      return {master, elements};
    }
    slice_in_fp32_.resize(elements);
    read_master(now, slice_in_fp32_.data(), 0, elements);
    return slice_in_fp32_;
  }
  if (model_.units[unit].frozen()) {
    slice_in_fp32_.assign(elements, 0.0F);
    return slice_in_fp32_;
  }
  if (sizes_.accumulator_type == DType::kF32 && !sizes_.units[unit].gradient_on_device) {
    return {reinterpret_cast<const float*>(memory_[unit].accumulator), elements};
  }
  slice_in_fp32_.resize(elements);
  cast(memory_[unit].accumulator, sizes_.accumulator_type, slice_in_fp32_.data(), DType::kF32, 0,
       elements);
  return slice_in_fp32_;
}

}  // namespace tandem
