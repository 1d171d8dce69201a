#include "engine/checkpoint/checkpoint_source.hpp"

#include <algorithm>
#include <utility>

#include "runtime/util/error.hpp"

namespace tandem {

namespace {

bool belongs_to(const std::string& file, std::string_view array) {
  return file.starts_with(std::string(array) + "-") && file.ends_with(".safetensors");
}

}  // namespace

bool has_array(const Manifest& manifest, std::string_view array) {
  return std::ranges::any_of(
      manifest.files, [&](const ManifestFile& file) { return belongs_to(file.name, array); });
}

CheckpointSource::CheckpointSource(const std::filesystem::path& folder, const Manifest& manifest,
                                   const RankLayout& layout, const std::vector<std::string>& arrays)
    : arrays_(arrays.size()) {
  for (std::size_t array = 0; array < arrays.size(); ++array) {
    for (const ManifestFile& entry : manifest.files) {
      if (!belongs_to(entry.name, arrays[array])) {
        continue;
      }
      files_.push_back(
          std::make_unique<SafetensorsFile>(SafetensorsFile::open(folder / entry.name)));
      for (const TensorInfo& tensor : files_.back()->tensors()) {
        arrays_[array][tensor.name] = {files_.back().get(), &tensor};
      }
    }
    for (const UnitSpec& unit : layout.model.units) {
      for (const ParameterSpec& parameter : unit.parameters) {
        if (!layout.has_array(parameter, static_cast<std::uint32_t>(array))) {
          continue;
        }
        const auto found = arrays_[array].find(parameter.name);
        if (found == arrays_[array].end()) {
          throw user_error("resume", "{} has no {} of {}; use the model that it was saved with",
                           folder.string(), arrays[array], parameter.name);
        }
        if (const TensorInfo& tensor = *found->second.tensor;
            tensor.shape != parameter.shape || tensor.type != TensorType::kF32) {
          throw user_error("resume",
                           "{} of {} is {} {} in {} and the model has F32 {}; use the "
                           "model that it was saved with",
                           arrays[array], parameter.name, name_of(tensor.type),
                           shape_text(tensor.shape), folder.string(), shape_text(parameter.shape));
        }
      }
    }
  }
}

StateSource CheckpointSource::source() const {
  return [this](const ParameterSpec& parameter, std::uint32_t array, std::int64_t begin,
                std::int64_t end, float* out) {
    const Place& place = arrays_[array].at(parameter.name);
    place.file->read_f32(*place.tensor, begin, end, out);
  };
}

}  // namespace tandem
