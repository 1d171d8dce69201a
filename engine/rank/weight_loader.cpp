#include "engine/rank/weight_loader.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr std::size_t kChunkElements = std::size_t{1} << 22;  // loaded or cast by one thread

}  // namespace

WeightLoader::WeightLoader(const RankLayout& layout, const RankMemory& memory,
                           Accelerator* accelerator, CpuPool& pool)
    : layout_(layout), memory_(memory), base_(layout.model), pool_(pool) {
  if (accelerator == nullptr || !layout.updates_on_device()) {
    return;
  }
  copies_.emplace(
      accelerator->device(),
      accelerator->is_simulated()
          ? std::span<std::byte>()
          : std::span(accelerator->pinned(DeviceCopies::kStageBytes), DeviceCopies::kStageBytes));
}

Task<> WeightLoader::load() {
  Work work;
  std::vector<std::size_t> on_host;  // units whose weights are
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    if (!is_made_elsewhere(unit)) {
      on_host.push_back(unit);
      add_unit(work, unit);
    }
  }
  const auto buffers_of = [this](std::size_t unit) -> const UpdateBuffers& {
    return memory_.unit(unit).buffers;
  };
  co_await load_into(&work, buffers_of);
  const auto complete = [&](std::size_t i) {
    const UnitMemory& unit = memory_.unit(on_host[i]);
    copy_on_host(memory_, shadow_arrays(on_host[i], unit.buffers, unit.shadow));
  };
  co_await pool_.for_chunks(on_host.size(), complete, {.name = "load: shadows"});
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    if (is_made_elsewhere(unit)) {
      co_await load_elsewhere(unit);
    }
  }
}

bool WeightLoader::is_made_elsewhere(std::size_t unit) const {
  return is_elsewhere(memory_.unit(unit).shard) ||
         memory_.is_on_nvme(memory_.unit(unit).buffers.master);
}

Task<> WeightLoader::copy(const HostView* view, Way way) {
  for (const HostView::Array& array : view->arrays) {
    if (memory_.is_on_nvme(array.elsewhere)) {
      const StateFile::Transfer all{array.elsewhere, array.host.data(), array.host.size_bytes()};
      co_await copy_file(view, all, way);
    } else if (way == Way::kToHost) {
      co_await copies_->to_host(array.host.span(), array.elsewhere);
    } else {
      co_await copies_->to_device(array.elsewhere, array.host.span());
    }
  }
}

Task<> WeightLoader::copy_file(const HostView* view, StateFile::Transfer transfer, Way way) {
  StateFile& file = *memory_.state_file();
  try {
    co_await (way == Way::kToHost ? file.read({transfer}) : file.write({transfer}));
  } catch (const FileError& error) {
    throw nvme_failure(
        way == Way::kToHost ? "read" : "write",
        fmt::format("weights and state of \"{}\"", layout_.model.units[view->unit].name), error);
  }
}

void WeightLoader::add_unit(Work& work, std::size_t unit) const {
  const std::size_t first = layout_.slice_begin(unit);
  const std::size_t elements = layout_.slice_elements(unit);
  const auto slice_begin = static_cast<std::int64_t>(first);
  const auto slice_end = static_cast<std::int64_t>(first + elements);
  constexpr auto kChunk = static_cast<std::int64_t>(kChunkElements);
  for (std::size_t i = 0; i < layout_.model.units[unit].parameters.size(); ++i) {
    const ParameterSpec& parameter = layout_.model.units[unit].parameters[i];
    const std::int64_t offset = layout_.parameters[unit].offsets[i];
    const std::int64_t last = std::min(parameter.numel(), slice_end - offset);
    for (std::int64_t begin = std::max<std::int64_t>(0, slice_begin - offset); begin < last;
         begin += kChunk) {
      work.pieces.push_back({&parameter, begin, std::min(begin + kChunk, last), unit,
                             static_cast<std::size_t>(offset + begin - slice_begin)});
    }
  }
  if (layout_.shape.type != DType::kF32 && memory_.unit(unit).buffers.whole_master() != nullptr) {
    for (std::size_t begin = 0; begin < elements; begin += kChunkElements) {
      work.casts.push_back({unit, begin, std::min(begin + kChunkElements, elements)});
    }
  }
}

template <class BuffersOf>
Task<> WeightLoader::load_into(const Work* work, BuffersOf buffers_of) {
  const auto load_one = [&](std::size_t i) {
    load_piece(work->pieces[i], buffers_of(work->pieces[i].unit));
  };
  const auto cast_one = [&](std::size_t i) {
    const Cast& part = work->casts[i];
    const UpdateBuffers& buffers = buffers_of(part.unit);
    cast(buffers.master, DType::kF32, buffers.weight, layout_.shape.type, part.begin, part.end);
  };
  co_await pool_.for_chunks(work->pieces.size(), load_one, {.name = "load weights"});
  co_await pool_.for_chunks(work->casts.size(), cast_one, {.name = "load: cast"});
}

void WeightLoader::load_piece(const Piece& piece, const UpdateBuffers& buffers) {
  TANDEM_CHECK(piece.begin < piece.end, "a piece has elements");
  TANDEM_CHECK_LE(piece.at + static_cast<std::size_t>(piece.end - piece.begin),
                  layout_.slice_elements(piece.unit), "a piece lies in the rank's slice");
  const Model& model = layout_.model;
  std::vector<float> made;
  float* values = buffers.whole_master();
  if (values != nullptr) {
    values += piece.at;
  } else {
    made.resize(static_cast<std::size_t>(piece.end - piece.begin));
    values = made.data();
  }
  model.source(*piece.parameter, piece.begin, piece.end, values);
  if (!made.empty()) {
    write_master(buffers, values, piece.at, piece.at + made.size());
  }
  base_.add(piece.unit, *piece.parameter, piece.begin, piece.end, values);
}

Task<> WeightLoader::load_elsewhere(std::size_t unit) {
  const UpdateBuffers& home = memory_.unit(unit).buffers;
  const HostView view = view_on_host(unit, home, /*whole=*/false);
  Work work;
  add_unit(work, unit);
  const auto buffers_of = [&view](std::size_t) -> const UpdateBuffers& { return view.buffers; };
  co_await load_into(&work, buffers_of);
  co_await copy(&view, Way::kBack);
  // The rest of the state begins as zeros, which host memory and files have already.
  const StateSizes& sizes = layout_.sizes.units[unit].state;
  for (std::size_t k = 0; k < 2; ++k) {
    if (memory_.is_on_device(home.state[k]) && home.layout != StateLayout::kSplit) {
      co_await copies_->clear(static_cast<std::byte*>(home.state[k]), sizes.state[k]);
    }
    if (memory_.is_on_device(home.scale[k])) {
      co_await copies_->clear(reinterpret_cast<std::byte*>(home.scale[k]), sizes.scale[k]);
    }
  }
  const std::vector<ShadowArray> shadow = shadow_arrays(unit, home, memory_.unit(unit).shadow);
  copy_on_host(memory_, shadow);
  co_await copy_on_device(shadow);
}

/// Elements that no update writes (frozen parameters, padding) must be in the shadow, too, when the
/// two are swapped. (On NVMe nothing is frozen then, and padding is zeros in both.)
std::vector<WeightLoader::ShadowArray> WeightLoader::shadow_arrays(
    std::size_t unit, const UpdateBuffers& home, const UpdateShadow& shadow) const {
  const StateSizes& sizes = layout_.sizes.units[unit].state;
  std::vector<ShadowArray> arrays;
  const auto add = [&](void* to, const void* from, std::size_t bytes) {
    if (to != nullptr && bytes > 0) {
      TANDEM_CHECK(from != nullptr && from != to, "a shadow is a second copy");
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

std::size_t WeightLoader::master_bytes(std::size_t unit) const {
  return layout_.shape.type == DType::kF32 ? layout_.slice_elements(unit) * sizeof(float)
                                           : layout_.sizes.units[unit].state.master;
}

void WeightLoader::copy_on_host(const RankMemory& memory, const std::vector<ShadowArray>& arrays) {
  for (const ShadowArray& array : arrays) {
    if (!memory.is_on_device(array.to) && !memory.is_on_nvme(array.to)) {
      std::memcpy(array.to, array.from, array.bytes);
    }
  }
}

Task<> WeightLoader::copy_on_device(std::vector<ShadowArray> arrays) {
  for (const ShadowArray& array : arrays) {
    if (memory_.is_on_device(array.to)) {
      co_await copies_->within_device(array.to, array.from, array.bytes);
    }
  }
}

WeightLoader::HostView WeightLoader::view_on_host(std::size_t unit, const UpdateBuffers& buffers,
                                                  bool whole) const {
  HostView view{.unit = unit, .buffers = buffers};
  const StateSizes& sizes = layout_.sizes.units[unit].state;
  const auto stand_in = [&](void*& array, std::size_t bytes) {
    if (is_elsewhere(array)) {
      view.arrays.push_back({static_cast<std::byte*>(array), HostBuffer(bytes)});
      array = view.arrays.back().host.data();
    }
  };
  stand_in(view.buffers.master, master_bytes(unit));
  stand_in(view.buffers.weight, layout_.slice_elements(unit) * bytes_of(layout_.shape.type));
  for (std::size_t array = 0; array < 2; ++array) {
    if (whole || buffers.layout == StateLayout::kSplit) {  // one of them keeps ties of the master
      stand_in(view.buffers.state[array], sizes.state[array]);
    }
    if (void* scale = view.buffers.scale[array]; whole && scale != nullptr) {
      stand_in(scale, sizes.scale[array]);
      view.buffers.scale[array] = static_cast<std::uint8_t*>(scale);
    }
  }
  return view;
}

Task<HostState> WeightLoader::state_of(std::size_t unit, UpdateBuffers now) {
  HostView view = view_on_host(unit, now, /*whole=*/true);
  HostState state{.buffers = view.buffers, .memory = {}};
  co_await copy(&view, Way::kToHost);
  for (HostView::Array& array : view.arrays) {
    state.memory.push_back(std::move(array.host));
  }
  co_return state;
}

Task<std::vector<float>> WeightLoader::slice_from(const StateSource* source, std::size_t unit,
                                                  std::uint32_t array) {
  TANDEM_CHECK(source != nullptr && *source, "a slice is read from a source");
  std::vector<float> values(layout_.slice_elements(unit));
  Work work;
  add_unit(work, unit);
  const auto load_one = [&](std::size_t i) {
    const Piece& piece = work.pieces[i];
    if (layout_.has_array(*piece.parameter, array)) {
      (*source)(*piece.parameter, array, piece.begin, piece.end, values.data() + piece.at);
    }
  };
  co_await pool_.for_chunks(work.pieces.size(), load_one, {.name = "load state"});
  co_return values;
}

std::vector<std::uint64_t> WeightLoader::sums_of(std::size_t unit,
                                                 std::span<const float> slice) const {
  std::vector<std::uint64_t> sums(layout_.model.units[unit].parameters.size());
  Work work;
  add_unit(work, unit);
  for (const Piece& piece : work.pieces) {
    const auto parameter = piece.parameter - layout_.model.units[unit].parameters.data();
    sums[static_cast<std::size_t>(parameter)] +=
        FrozenBase::sum_of(piece.begin, piece.end, slice.data() + piece.at);
  }
  return sums;
}

Task<> WeightLoader::restore(std::size_t unit, UpdatedUnit now, const StateSource* source,
                             bool moments) {
  const bool frozen = layout_.model.units[unit].frozen();
  const HostView view = view_on_host(unit, now.buffers, /*whole=*/true);
  co_await copy(&view, Way::kToHost);  // what is not restored stays
  {
    const std::vector<float> master = co_await slice_from(source, unit, kMasterArray);
    write_master(view.buffers, master.data(), 0, master.size());
    if (frozen) {
      base_.set(unit, sums_of(unit, master));
    }
  }
  for (std::size_t k = 0; moments && !frozen && k < state_arrays(layout_.shape.update); ++k) {
    const auto array = static_cast<std::uint32_t>(k + 1);
    const std::vector<float> values = co_await slice_from(source, unit, array);
    write_state(view.buffers, k, values.data(), 0, values.size());
  }
  co_await copy(&view, Way::kBack);
  const std::vector<ShadowArray> shadow = shadow_arrays(unit, now.buffers, now.shadow);
  copy_on_host(memory_, shadow);
  co_await copy_on_device(shadow);
}

Task<std::span<const float>> WeightLoader::master_of(std::size_t unit, UpdateBuffers now) {
  const std::size_t elements = layout_.slice_elements(unit);
  if (const float* master = now.whole_master(); master != nullptr && !is_elsewhere(master)) {
    co_return std::span(master, elements);
  }
  if (layout_.model.units[unit].frozen() && base_.is_of_source(unit)) {
    // Their 16 bits are all that is kept; the source has the others.
    const StateSource source = [this](const ParameterSpec& parameter, std::uint32_t,
                                      std::int64_t begin, std::int64_t end, float* out) {
      layout_.model.source(parameter, begin, end, out);
    };
    slice_ = co_await slice_from(&source, unit, kMasterArray);
    co_return slice_;
  }
  const HostView view = view_on_host(unit, now, /*whole=*/false);
  co_await copy(&view, Way::kToHost);
  slice_.resize(elements);
  read_master(view.buffers, slice_.data(), 0, elements);
  co_return slice_;
}

Task<std::span<const float>> WeightLoader::gradient_of(std::size_t unit) {
  const std::size_t elements = layout_.slice_elements(unit);
  if (layout_.model.units[unit].frozen()) {
    slice_.assign(elements, 0.0F);
    co_return slice_;
  }
  const DType type = layout_.sizes.accumulator_type;
  const std::byte* gradient = memory_.unit(unit).accumulator;
  HostView view{.unit = unit};
  if (is_elsewhere(gradient)) {
    view.arrays.push_back(
        {const_cast<std::byte*>(gradient), HostBuffer(layout_.sizes.units[unit].accumulator)});
    co_await copy(&view, Way::kToHost);
    gradient = view.arrays.front().host.data();
  } else if (type == DType::kF32) {
    co_return std::span(reinterpret_cast<const float*>(gradient), elements);
  }
  slice_.resize(elements);
  cast(gradient, type, slice_.data(), DType::kF32, 0, elements);
  co_return slice_;
}

}  // namespace tandem
