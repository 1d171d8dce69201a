#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "actors/storage/json.hpp"
#include "models/foreign/readers.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

constexpr std::string_view kSingle = "pytorch_model.bin";
constexpr std::string_view kIndex = "pytorch_model.bin.index.json";
constexpr std::uint64_t kMostIndexBytes = 256u << 20;

/// How many members of a dict are tensors; 0 for anything that is mostly something else.
std::size_t tensors_in(const TorchFile& file, const PickleValue& dict) {
  if (!dict.is(Kind::kDict)) {
    return 0;
  }
  std::size_t tensors = 0;
  for (std::size_t i = 1; i < dict.items.size(); i += 2) {
    tensors += file.tensor(*dict.items[i]) != nullptr ? 1 : 0;
  }
  return tensors * 4 > dict.items.size() ? tensors : 0;
}

/// The state dict: the object itself, or the only state dict among its members, as trainers save it
/// beside other things.
const PickleValue& state_dict(CheckpointBuilder& out, const TorchFile& file) {
  const PickleValue& root = file.root();
  if (!root.is(Kind::kDict)) {
    throw file.error("it holds no dict of tensors");
  }
  const PickleValue* found = nullptr;
  for (std::size_t i = 1; i < root.items.size(); i += 2) {
    if (tensors_in(file, *root.items[i]) == 0) {
      continue;
    }
    if (found != nullptr) {
      throw file.error("it holds more than one dict of tensors");
    }
    found = root.items[i];
  }
  if (found == nullptr || tensors_in(file, root) > tensors_in(file, *found)) {
    return root;
  }
  for (std::size_t i = 0; i + 1 < root.items.size(); i += 2) {
    if (root.items[i + 1] != found) {
      out.checkpoint().notes.push_back(
          fmt::format("\"{}\" beside the weights", printable(root.items[i]->text)));
    }
  }
  return *found;
}

void add_file(CheckpointBuilder& out, const std::shared_ptr<const TorchFile>& file) {
  const PickleValue& state = state_dict(out, *file);
  std::multimap<std::pair<std::size_t, std::int64_t>, std::pair<const TorchTensor*, std::string>>
      seen;
  for (std::size_t i = 0; i + 1 < state.items.size(); i += 2) {
    const PickleValue& name = *state.items[i];
    const TorchTensor* tensor = file->tensor(*state.items[i + 1]);
    if (tensor == nullptr) {
      out.checkpoint().notes.push_back(
          fmt::format("\"{}\": it is no tensor", printable(name.text)));
      continue;
    }
    const auto [first, last] = seen.equal_range({tensor->storage, tensor->offset});
    const auto same = std::find_if(
        first, last, [&](const auto& other) { return *other.second.first == *tensor; });
    if (same != last && !out.has(name.text)) {
      out.tie(std::string(name.text), same->second.second);
      continue;
    }
    out.add_stored(name, file, *tensor, false, false);
    if (tensor->numel > 0) {
      seen.emplace(std::pair(tensor->storage, tensor->offset), std::pair(tensor, name.text));
    }
  }
}

/// Files of the index, and how many names it gives.
std::set<std::string> read_index(const fs::path& path, std::set<std::string>& names) {
  const JsonDocument document = JsonDocument::load(
      path, {.where = "import", .advice = "download the checkpoint again"}, kMostIndexBytes);
  std::set<std::string> files;
  for (const auto& [name, value] : document.root().at("weight_map").members()) {
    const std::string file(value.string());
    if (file.find('/') != std::string::npos || file.find('\0') != std::string::npos ||
        !file.ends_with(".bin") || file.starts_with('.')) {
      throw value.wrong("the plain name of a .bin file in the same folder");
    }
    files.insert(file);
    names.emplace(name);
  }
  return files;
}

}  // namespace

ImportedCheckpoint read_pytorch(const fs::path& path) {
  CheckpointBuilder out("pytorch", path);
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    add_file(out, TorchFile::open(path));
  } else if (fs::exists(path / kSingle, ignored)) {
    add_file(out, TorchFile::open(path / kSingle));
  } else {
    std::set<std::string> names;
    for (const std::string& file : read_index(path / kIndex, names)) {
      add_file(out, TorchFile::open(path / file));
    }
    for (const std::string& name : names) {
      if (!out.has(name) && !out.checkpoint().tied.contains(name)) {
        throw user_error("import",
                         "{} names tensor \"{}\", which no file holds; download the checkpoint "
                         "again",
                         (path / kIndex).string(), printable(name));
      }
    }
  }
  if (out.checkpoint().tensors.empty()) {
    throw user_error("import", "{} holds no tensor; give the file of a model's weights",
                     path.string());
  }
  return std::move(out).take();
}

}  // namespace tandem
