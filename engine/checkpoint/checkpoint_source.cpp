#include "engine/checkpoint/checkpoint_source.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

bool has_array(const HeldCheckpoint& held, std::string_view array) {
  return std::ranges::any_of(
      held.whole, [&](const PlannedFile& file) { return array_of_file(file.name) == array; });
}

void require_shapes(const HeldCheckpoint& held, const RankLayout& layout,
                    const std::vector<std::string>& arrays) {
  for (std::size_t array = 0; array < arrays.size(); ++array) {
    std::unordered_map<std::string, const TensorPlan*> tensors;
    for (const PlannedFile& file : held.whole) {
      if (array_of_file(file.name) == arrays[array]) {
        for (const TensorPlan& tensor : file.tensors) {
          tensors[tensor.name] = &tensor;
        }
      }
    }
    for (const UnitSpec& unit : layout.model.units) {
      if (unit.frozen() && std::ranges::none_of(unit.parameters, [&](const ParameterSpec& one) {
            return tensors.contains(one.name);
          })) {
        continue;  // of its source
      }
      for (const ParameterSpec& parameter : unit.parameters) {
        if (!layout.has_array(parameter, static_cast<std::uint32_t>(array))) {
          continue;
        }
        const auto found = tensors.find(parameter.name);
        if (found == tensors.end()) {
          throw user_error("resume", "{} has no {} of {}; use the model that it was saved with",
                           held.folder, arrays[array], parameter.name);
        }
        if (const TensorPlan& tensor = *found->second;
            tensor.shape != parameter.shape || tensor.type != TensorType::kF32) {
          throw user_error("resume",
                           "{} of {} is {} {} in {} and the model has F32 {}; use the "
                           "model that it was saved with",
                           arrays[array], parameter.name, name_of(tensor.type),
                           shape_text(tensor.shape), held.folder, shape_text(parameter.shape));
        }
      }
    }
  }
}

CheckpointSource::CheckpointSource(const HeldCheckpoint& here,
                                   const std::vector<std::string>& arrays)
    : arrays_(arrays.size()), lent_(arrays.size()) {
  for (std::size_t array = 0; array < arrays.size(); ++array) {
    for (const ManifestFile& entry : here.files) {
      if (array_of_file(entry.name) != arrays[array]) {
        continue;
      }
      files_.push_back(std::make_unique<SafetensorsFile>(
          SafetensorsFile::open(std::filesystem::path(here.folder) / entry.name)));
      for (const TensorInfo& tensor : files_.back()->tensors()) {
        auto run = here.in_slices ? TensorRun::parse(tensor.name)
                                  : TensorRun{tensor.name, 0, tensor.numel()};
        if (run) {
          arrays_[array][run->tensor].push_back({.run = {.begin = run->begin, .end = run->end},
                                                 .file = files_.back().get(),
                                                 .tensor = &tensor});
        }
      }
    }
  }
}

CheckpointSource::Place CheckpointSource::in_memory(std::int64_t begin, std::vector<float> values) {
  const std::int64_t end = begin + static_cast<std::int64_t>(values.size());
  return {.run = {.begin = begin, .end = end}, .values = std::move(values)};
}

void CheckpointSource::keep(std::uint32_t array, const std::string& parameter, std::int64_t begin,
                            std::vector<float> values) {
  arrays_[array][parameter].push_back(in_memory(begin, std::move(values)));
}

void CheckpointSource::lend(std::uint32_t array, const std::string& parameter, std::int64_t begin,
                            std::vector<float> values) {
  lent_[array][parameter].push_back(in_memory(begin, std::move(values)));
}

void CheckpointSource::drop_lent() {
  for (Places& places : lent_) {
    places.clear();
  }
}

void CheckpointSource::read(std::uint32_t array, const std::string& parameter, std::int64_t begin,
                            std::int64_t end, float* out) const {
  std::int64_t read = 0;
  const auto read_from = [&](const Places& places) {
    const auto found = places.find(parameter);
    if (found == places.end()) {
      return;
    }
    for (const Place& place : found->second) {
      const std::int64_t first = std::max(begin, place.run.begin);
      const std::int64_t last = std::min(end, place.run.end);
      if (first >= last) {
        continue;
      }
      if (place.file != nullptr) {
        place.file->read_f32(*place.tensor, first - place.run.begin, last - place.run.begin,
                             out + (first - begin));
      } else {
        std::copy_n(place.values.data() + (first - place.run.begin), last - first,
                    out + (first - begin));
      }
      read += last - first;
    }
  };
  read_from(arrays_[array]);
  read_from(lent_[array]);
  TANDEM_CHECK(read == end - begin, "every element lies in one place");
}

StateSource CheckpointSource::source() const {
  return [this](const ParameterSpec& parameter, std::uint32_t array, std::int64_t begin,
                std::int64_t end, float* out) { read(array, parameter.name, begin, end, out); };
}

}  // namespace tandem
