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
  std::size_t largest = 0;
  for (const UnitSizes& unit : layout_.sizes.units) {
    largest = std::max({largest, unit.state.total(), unit.weights});
  }
  const std::size_t bytes = DeviceCopies::stage_bytes(largest);
  copies_.emplace(accelerator->device(), accelerator->is_simulated()
                                             ? std::span<std::byte>()
                                             : std::span(accelerator->pinned(bytes), bytes));
}

Task<> WeightLoader::load() {
  Work work;
  std::vector<std::size_t> on_host;  // units whose weights are
  std::vector<UpdateBuffers> buffers(layout_.model.units.size());
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    if (!is_made_elsewhere(unit)) {
      on_host.push_back(unit);
      buffers[unit] = view_on_host(unit, memory_.unit(unit).buffers, /*whole=*/false).buffers;
      add_unit(work, unit);
    }
  }
  const auto buffers_of = [&buffers](std::size_t unit) -> const UpdateBuffers& {
    return buffers[unit];
  };
  co_await load_into(&work, buffers_of);
  const auto complete = [&](std::size_t i) {
    const UnitMemory& unit = memory_.unit(on_host[i]);
    copy_on_host(shadow_arrays(on_host[i], unit.buffers, unit.shadow));
  };
  co_await pool_.for_chunks(on_host.size(), complete, {.name = "load: shadows"});
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    if (is_made_elsewhere(unit)) {
      co_await load_elsewhere(unit);
    }
  }
}

bool WeightLoader::is_made_elsewhere(std::size_t unit) const {
  return memory_.unit(unit).shard.place() != Place::kHost ||
         memory_.unit(unit).buffers.master.place() == Place::kFile;
}

Task<> WeightLoader::copy(const HostView* view, Way way) {
  for (const HostView::Array& array : view->arrays) {
    if (array.elsewhere.place() == Place::kFile) {
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
    Task<> moved = way == Way::kToHost ? file.read({transfer}) : file.write({transfer});
    co_await std::move(moved);
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
  const PlacedBuffers& home = memory_.unit(unit).buffers;
  const HostView view = view_on_host(unit, home, /*whole=*/false);
  Work work;
  add_unit(work, unit);
  const auto buffers_of = [&view](std::size_t) -> const UpdateBuffers& { return view.buffers; };
  co_await load_into(&work, buffers_of);
  co_await copy(&view, Way::kBack);
  // The rest of the state begins as zeros, which host memory and files have already.
  const StateSizes& sizes = layout_.sizes.units[unit].state;
  for (std::size_t k = 0; k < 2; ++k) {
    if (home.state[k].place() == Place::kDevice && home.layout != StateLayout::kSplit) {
      co_await copies_->clear(Placed<std::byte>(home.state[k]), sizes.state[k]);
    }
    if (home.scale[k].place() == Place::kDevice) {
      co_await copies_->clear(Placed<std::byte>(home.scale[k]), sizes.scale[k]);
    }
  }
  const std::vector<ShadowArray> shadow = shadow_arrays(unit, home, memory_.unit(unit).shadow);
  copy_on_host(shadow);
  co_await copy_on_device(shadow);
}

/// Elements that no update writes (frozen parameters, padding) must be in the shadow, too, when the
/// two are swapped. (On NVMe nothing is frozen then, and padding is zeros in both.)
std::vector<WeightLoader::ShadowArray> WeightLoader::shadow_arrays(
    std::size_t unit, const PlacedBuffers& home, const PlacedShadow& shadow) const {
  const StateSizes& sizes = layout_.sizes.units[unit].state;
  std::vector<ShadowArray> arrays;
  const auto add = [&](Placed<void> to, Placed<void> from, std::size_t bytes) {
    if (to != nullptr && bytes > 0) {
      TANDEM_CHECK(from != nullptr && from != to, "a shadow is a second copy");
      arrays.push_back({Placed<std::byte>(to), Placed<std::byte>(from), bytes});
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

void WeightLoader::copy_on_host(const std::vector<ShadowArray>& arrays) {
  for (const ShadowArray& array : arrays) {
    if (array.to.place() == Place::kHost) {
      std::memcpy(array.to.host(), array.from.host(), array.bytes);
    }
  }
}

Task<> WeightLoader::copy_on_device(std::vector<ShadowArray> arrays) {
  for (const ShadowArray& array : arrays) {
    if (array.to.place() == Place::kDevice) {
      co_await copies_->within_device(array.to, array.from, array.bytes);
    }
  }
}

WeightLoader::HostView WeightLoader::view_on_host(std::size_t unit, const PlacedBuffers& buffers,
                                                  bool whole) const {
  HostView view{.unit = unit,
                .buffers = {.gradient_type = buffers.gradient_type,
                            .weight_type = buffers.weight_type,
                            .layout = buffers.layout,
                            .position = buffers.position}};
  const StateSizes& sizes = layout_.sizes.units[unit].state;
  const auto lay = [&view]<class T>(T*& into, Placed<T> array, std::size_t bytes, bool wanted) {
    if (array.place() == Place::kHost) {
      into = array.host();
    } else if (wanted) {
      view.arrays.push_back({Placed<std::byte>(array), HostBuffer(bytes)});
      into = view.arrays.back().host.template as<T>();
    }
  };
  UpdateBuffers& here = view.buffers;
  lay(here.master, buffers.master, master_bytes(unit), true);
  lay(here.weight, buffers.weight, layout_.slice_elements(unit) * bytes_of(layout_.shape.type),
      true);
  const bool has_ties = buffers.layout == StateLayout::kSplit;  // of the master, in one of them
  for (std::size_t array = 0; array < 2; ++array) {
    lay(here.state[array], buffers.state[array], sizes.state[array], whole || has_ties);
    lay(here.scale[array], buffers.scale[array], sizes.scale[array], whole);
  }
  return view;
}

Task<HostState> WeightLoader::state_of(std::size_t unit, PlacedBuffers now) {
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

Task<> WeightLoader::restore(std::size_t unit, PlacedState now, const StateSource* source,
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
  copy_on_host(shadow);
  co_await copy_on_device(shadow);
}

Task<std::span<const float>> WeightLoader::master_of(std::size_t unit, PlacedBuffers now) {
  const std::size_t elements = layout_.slice_elements(unit);
  if (const Placed<const float> master = now.whole_master();
      master != nullptr && master.place() == Place::kHost) {
    co_return std::span(master.host(), elements);
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
  Placed<std::byte> gradient = memory_.unit(unit).accumulator;
  HostView view{.unit = unit};
  if (gradient.place() != Place::kHost) {
    view.arrays.push_back({gradient, HostBuffer(layout_.sizes.units[unit].accumulator)});
    co_await copy(&view, Way::kToHost);
    gradient = view.arrays.front().host.data();
  } else if (type == DType::kF32) {
    co_return std::span(reinterpret_cast<const float*>(gradient.host()), elements);
  }
  slice_.resize(elements);
  cast(gradient.host(), type, slice_.data(), DType::kF32, 0, elements);
  co_return slice_;
}

}  // namespace tandem
