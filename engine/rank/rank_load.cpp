// engine/rank/rank_load.cpp — the weights and state of a rank's units, loaded and read back, on
// whatever side they lie; see rank.hpp.
#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "engine/device/compute_thread.hpp"
#include "engine/rank/rank.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kLoadChunkElements = 1 << 22;

}  // namespace

std::vector<Rank::Piece> Rank::pieces_of(std::size_t unit) const {
  std::vector<Piece> pieces;
  const UnitLayout& layout = layouts_[unit].block;
  const auto slice_begin =
      static_cast<std::int64_t>(layout.shard_begin(sharding_.slice(model_.units[unit])));
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
  return pieces;
}

void Rank::load_piece(const Piece& piece, const UpdateBuffers& buffers) const {
  if (float* master = buffers.whole_master()) {
    model_.source(*piece.parameter, piece.begin, piece.end, master + piece.at);
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(piece.end - piece.begin));
  model_.source(*piece.parameter, piece.begin, piece.end, values.data());
  write_master(buffers, values.data(), piece.at, piece.at + values.size());
}

void Rank::load_weights() {
  // Here and not in the first steps, by the threads that will work on it: near them, and no page is
  // missing later.
  const auto touch = [this](std::size_t i) { owned_[i].touch(); };
  const auto prepare = [this] {
    if (!options_.compute_cores.empty()) {
      bind_thread(options_.compute_cores);  // the team that ATen makes later inherits it
    }
    prepare_compute_thread(options_.compute_threads);
    if (accelerator_ && accelerator_->compute() != nullptr) {
      accelerator_->compute()->prepare_thread();
    }
  };
  std::vector<std::size_t> here;
  std::vector<std::size_t> there;  // weights are the device's, if nothing else is
  std::vector<Piece> pieces;       // of units that are here
  std::vector<Cast> casts;         // once the masters are loaded, padding included
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    (is_on_device(memory_[unit].shard) ? there : here).push_back(unit);
    if (here.empty() || here.back() != unit) {
      continue;
    }
    std::ranges::copy(pieces_of(unit), std::back_inserter(pieces));
    std::ranges::copy(casts_of(unit), std::back_inserter(casts));
  }
  const auto load = [&](std::size_t i) { load_piece(pieces[i], memory_[pieces[i].unit].buffers); };
  const auto cast = [&](std::size_t i) { cast_weights(casts[i], memory_[casts[i].unit].buffers); };
  const auto complete = [&](std::size_t i) { copy_to_shadow(here[i]); };
  loop_.run(
      [](Rank* self, std::size_t count, const decltype(load)* load_one, std::size_t cast_count,
         const decltype(cast)* cast_one, std::size_t units, const decltype(complete)* complete_one,
         const std::vector<std::size_t>* on_device, const decltype(prepare)* prepare_lane,
         const decltype(touch)* touch_buffer) -> Task<> {
        co_await self->lane_.run(*prepare_lane);
        co_await self->optimizer_pool_.for_chunks(self->owned_.size(), *touch_buffer);
        CpuPool& loaders = self->loading_pool();
        co_await loaders.for_chunks(count, *load_one);
        co_await loaders.for_chunks(cast_count, *cast_one);
        co_await loaders.for_chunks(units, *complete_one);
        for (const std::size_t unit : *on_device) {
          co_await self->load_on_device(unit);
        }
      },
      this, pieces.size(), &load, casts.size(), &cast, here.size(), &complete, &there, &prepare,
      &touch);
}

/// A page cache feeds more threads than the two copy threads.
CpuPool& Rank::loading_pool() noexcept {
  return optimizer_pool_.threads() > copy_pool_.threads() ? optimizer_pool_ : copy_pool_;
}

std::vector<Rank::Cast> Rank::casts_of(std::size_t unit) const {
  std::vector<Cast> casts;
  if (options_.type != DType::kF32 && memory_[unit].buffers.whole_master() != nullptr) {
    constexpr auto kChunk = static_cast<std::size_t>(kLoadChunkElements);
    const std::size_t elements = layouts_[unit].block.shard_elements;
    for (std::size_t begin = 0; begin < elements; begin += kChunk) {
      casts.push_back({unit, begin, std::min(begin + kChunk, elements)});
    }
  }
  return casts;
}

/// Once a unit's masters are loaded: the weights that are cast from them.
void Rank::cast_weights(const Cast& part, const UpdateBuffers& buffers) const {
  cast(buffers.master, DType::kF32, buffers.weight, options_.type, part.begin, part.end);
}

/// What is in no update (frozen parameters, padding) must be there when the two are swapped.
std::vector<Rank::ShadowArray> Rank::shadow_arrays(std::size_t unit) const {
  const UpdateBuffers& home = memory_[unit].buffers;
  const UpdateShadow& shadow = memory_[unit].shadow;
  const StateSizes& sizes = sizes_.units[unit].state;
  std::vector<ShadowArray> arrays;
  const auto add = [&](void* to, const void* from, std::size_t bytes) {
    if (to != nullptr && bytes > 0) {
      arrays.push_back({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes});
    }
  };
  add(shadow.master, home.master, master_bytes(unit));
  for (std::size_t array = 0; array < 2; ++array) {
    add(shadow.state[array], home.state[array], sizes.state[array]);
    add(shadow.scale[array], home.scale[array], sizes.scale[array]);
  }
  return arrays;
}

std::size_t Rank::master_bytes(std::size_t unit) const {
  return options_.type == DType::kF32 ? layouts_[unit].block.shard_elements * sizeof(float)
                                      : sizes_.units[unit].state.master;
}

void Rank::copy_to_shadow(std::size_t unit) const {
  for (const ShadowArray& array : shadow_arrays(unit)) {
    if (!is_on_device(array.to)) {
      std::memcpy(array.to, array.from, array.bytes);
    }
  }
}

bool Rank::is_on_device(const void* memory) const noexcept {
  return accelerator_ && accelerator_->holds(memory);
}

Rank::HostView Rank::view_on_host(std::size_t unit, const UpdateBuffers& buffers) const {
  HostView view{.buffers = buffers};
  const StateSizes& sizes = sizes_.units[unit].state;
  const auto stand_in = [&](void*& array, std::size_t bytes) {
    if (is_on_device(array)) {
      HostBuffer& host =
          view.arrays
              .emplace_back(HostView::Array{static_cast<std::byte*>(array), HostBuffer(bytes)})
              .host;
      array = host.data();
    }
  };
  stand_in(view.buffers.master, master_bytes(unit));
  stand_in(view.buffers.weight, layouts_[unit].block.shard_elements * bytes_of(options_.type));
  if (buffers.layout == StateLayout::kSplit) {  // a moment has the master's ties
    for (std::size_t array = 0; array < 2; ++array) {
      stand_in(view.buffers.state[array], sizes.state[array]);
    }
  }
  return view;
}

Task<> Rank::load_on_device(std::size_t unit) {
  const HostView view = view_on_host(unit, memory_[unit].buffers);
  const std::vector<Piece> pieces = pieces_of(unit);
  const auto load = [&](std::size_t i) { load_piece(pieces[i], view.buffers); };
  const std::vector<Cast> casts = casts_of(unit);
  const auto cast = [&](std::size_t i) { cast_weights(casts[i], view.buffers); };
  co_await loading_pool().for_chunks(pieces.size(), load);
  co_await loading_pool().for_chunks(casts.size(), cast);
  for (const HostView::Array& array : view.arrays) {
    co_await copies_->to_device(array.device, array.host.span());
  }
  // What is left of the state begins as zeros; on the host it is.
  const UpdateBuffers& home = memory_[unit].buffers;
  const StateSizes& sizes = sizes_.units[unit].state;
  for (std::size_t k = 0; k < 2; ++k) {
    if (is_on_device(home.state[k]) && home.layout != StateLayout::kSplit) {
      co_await copies_->clear(static_cast<std::byte*>(home.state[k]), sizes.state[k]);
    }
    if (is_on_device(home.scale[k])) {
      co_await copies_->clear(reinterpret_cast<std::byte*>(home.scale[k]), sizes.scale[k]);
    }
  }
  copy_to_shadow(unit);
  for (const ShadowArray& array : shadow_arrays(unit)) {
    if (is_on_device(array.to)) {
      co_await copies_->within_device(array.to, array.from, array.bytes);
    }
  }
}

Task<std::span<const float>> Rank::slice_of(std::size_t unit, State state) {
  const std::size_t elements = layouts_[unit].block.shard_elements;
  if (state == State::kMaster) {
    const UpdateBuffers& now = optimizer_->state_of(unit).buffers;
    if (const float* master = now.whole_master(); master != nullptr && !is_on_device(master)) {
      co_return std::span(master, elements);
    }
    const HostView view = view_on_host(unit, now);
    for (const HostView::Array& array : view.arrays) {
      co_await copies_->to_host(array.host.span(), array.device);
    }
    slice_in_fp32_.resize(elements);
    read_master(view.buffers, slice_in_fp32_.data(), 0, elements);
    co_return slice_in_fp32_;
  }
  if (model_.units[unit].frozen()) {
    slice_in_fp32_.assign(elements, 0.0F);
    co_return slice_in_fp32_;
  }
  const std::byte* gradient = memory_[unit].accumulator;
  HostBuffer fetched;
  if (is_on_device(gradient)) {
    fetched = HostBuffer(sizes_.units[unit].accumulator);
    co_await copies_->to_host(fetched.span(), gradient);
    gradient = fetched.data();
  } else if (sizes_.accumulator_type == DType::kF32) {
    co_return std::span(reinterpret_cast<const float*>(gradient), elements);
  }
  slice_in_fp32_.resize(elements);
  cast(gradient, sizes_.accumulator_type, slice_in_fp32_.data(), DType::kF32, 0, elements);
  co_return slice_in_fp32_;
}

}  // namespace tandem
