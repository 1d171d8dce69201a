#include "engine/checkpoint/held_checkpoint.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace tandem {

namespace {

std::string key_of(std::string_view array, std::string_view tensor) {
  return fmt::format("{}/{}", array, tensor);
}

}  // namespace

HeldCheckpoint HeldCheckpoint::parse(const std::string& folder, const std::string& text) {
  Manifest manifest = Manifest::parse(text, fmt::format("{}/{}", folder, Manifest::name_of(text)));
  HeldCheckpoint held{.folder = folder,
                      .in_slices = manifest.slices.has_value(),
                      .step = manifest.step,
                      .files = std::move(manifest.files)};
  if (manifest.slices) {
    held.whole = std::move(manifest.slices->whole);
    held.hosts = std::move(manifest.slices->hosts);
    held.disk = manifest.slices->disk;
    return held;
  }
  for (const ManifestFile& file : held.files) {
    if (array_of_file(file.name).empty()) {
      continue;
    }
    PlannedFile& planned = held.whole.emplace_back(PlannedFile{.name = file.name});
    for (const ManifestTensor& tensor : file.tensors) {
      planned.tensors.push_back({.name = tensor.name, .type = tensor.type, .shape = tensor.shape});
    }
  }
  return held;
}

std::string_view array_of_file(std::string_view name) {
  return name.ends_with(".safetensors") ? name.substr(0, std::min(name.find('-'), name.size()))
                                        : std::string_view();
}

HeldRuns::HeldRuns(const HeldCheckpoint& held) {
  for (const ManifestFile& file : held.files) {
    const std::string_view array = array_of_file(file.name);
    for (const ManifestTensor& tensor : file.tensors) {
      const auto elements = static_cast<std::int64_t>(tensor.size_bytes / bytes_of(tensor.type));
      const auto run =
          held.in_slices ? TensorRun::parse(tensor.name) : TensorRun{tensor.name, 0, elements};
      if (run) {
        runs_[key_of(array, run->tensor)].push_back({.begin = run->begin, .end = run->end});
      }
    }
  }
  for (auto& [key, runs] : runs_) {
    std::ranges::sort(runs, {}, &ElementRun::begin);
  }
}

const std::vector<ElementRun>& HeldRuns::of(std::string_view array,
                                            const std::string& tensor) const {
  static const std::vector<ElementRun> kNone;
  const auto found = runs_.find(key_of(array, tensor));
  return found == runs_.end() ? kNone : found->second;
}

std::vector<ElementRun> HeldRuns::missing(std::string_view array, const std::string& tensor,
                                          ElementRun run) const {
  return left_of(run, of(array, tensor));
}

std::vector<ElementRun> left_of(ElementRun run, const std::vector<ElementRun>& held) {
  std::vector<ElementRun> left;
  for (const ElementRun& one : held) {
    if (one.end <= run.begin || run.begin >= run.end) {
      continue;
    }
    if (one.begin > run.begin) {
      left.push_back({.begin = run.begin, .end = std::min(one.begin, run.end)});
    }
    run.begin = one.end;
  }
  if (run.begin < run.end) {
    left.push_back(run);
  }
  return left;
}

}  // namespace tandem
