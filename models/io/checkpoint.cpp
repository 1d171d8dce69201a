#include "models/io/checkpoint.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "actors/storage/json.hpp"

namespace tandem {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::uint64_t kMostIndexBytes = 256u << 20;

struct ShardIndex {
  std::map<std::string, std::string> file_of;  // tensor -> file name
  std::set<std::string> files;
  std::optional<double> total_size;
};

ShardIndex read_index(const std::filesystem::path& path) {
  const JsonDocument document = JsonDocument::load(
      path, {.where = std::string(kWhere), .advice = "download the checkpoint again"},
      kMostIndexBytes);
  ShardIndex index;
  for (const auto& [name, value] : document.root().at("weight_map").members()) {
    const std::string file(value.string());
    const bool plain = !file.empty() && file.find('/') == std::string::npos &&
                       file.find('\\') == std::string::npos &&
                       file.find('\0') == std::string::npos && !file.starts_with('.') &&
                       file.ends_with(".safetensors");
    if (!plain) {
      throw value.wrong("the plain name of a .safetensors file in the same folder");
    }
    index.files.insert(file);
    index.file_of.emplace(std::string(name), file);
  }
  if (index.file_of.empty()) {
    throw document.root().at("weight_map").error("it names no tensor");
  }
  if (const auto metadata = document.root().find("metadata")) {
    if (const auto size = metadata->find("total_size")) {
      index.total_size = size->number();
    }
  }
  return index;
}

/// "model-00001-of-00003.safetensors" -> "-of-00003.safetensors"; empty for other names.
std::string shard_ending(const std::string& name) {
  const std::size_t at = name.rfind("-of-");
  return at == std::string::npos ? std::string{} : name.substr(at);
}

void refuse_undeclared_shards(const std::filesystem::path& folder, const ShardIndex& index) {
  const std::string ending = shard_ending(*index.files.begin());
  if (ending.empty()) {
    return;
  }
  const std::string start = index.files.begin()->substr(0, index.files.begin()->find('-') + 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(start) && name.ends_with(ending) && !index.files.contains(name)) {
      throw user_error(kWhere,
                       "{} lies beside {} but the index does not name it; remove it or download "
                       "the checkpoint again",
                       entry.path().string(), kIndex);
    }
  }
}

[[noreturn]] void no_weights(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw user_error(kWhere, "{} is not a folder; give the folder of a Hugging Face model",
                     folder.string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto extension = entry.path().extension();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth") {
      throw user_error(kWhere,
                       "{} holds {} but no {}; pickle files are never read: convert it with "
                       "transformers' save_pretrained(..., safe_serialization=True)",
                       folder.string(), entry.path().filename().string(), kSingle);
    }
  }
  throw user_error(kWhere, "{} has neither {} nor {}; give the folder of a Hugging Face model",
                   folder.string(), kSingle, kIndex);
}

}  // namespace

void Checkpoint::add_file(const std::filesystem::path& path) {
  files_.push_back(SafetensorsFile::open(path));
  for (const TensorInfo& tensor : files_.back().tensors()) {
    const auto [place, is_new] = file_of_.emplace(tensor.name, files_.size() - 1);
    if (!is_new) {
      throw user_error(kWhere,
                       "tensor \"{}\" is in {} and in {}; remove one, or download the checkpoint "
                       "again",
                       tensor.name, files_[place->second].path().string(), path.string());
    }
  }
}

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  Checkpoint out;
  out.folder_ = folder;
  std::error_code ignored;
  // As Transformers does: the single file wins over an index beside it.
  if (std::filesystem::exists(folder / kSingle, ignored)) {
    out.add_file(folder / kSingle);
    return out;
  }
  if (!std::filesystem::exists(folder / kIndex, ignored)) {
    no_weights(folder);
  }
  const ShardIndex index = read_index(folder / kIndex);
  refuse_undeclared_shards(folder, index);
  for (const std::string& file : index.files) {
    if (!std::filesystem::exists(folder / file, ignored)) {
      throw user_error(kWhere, "{} names {}, which is not there; download the missing shard",
                       (folder / kIndex).string(), file);
    }
    out.add_file(folder / file);
  }
  for (const auto& [name, file] : index.file_of) {
    const auto place = out.file_of_.find(name);
    if (place == out.file_of_.end() ||
        out.files_[place->second].path().filename().string() != file) {
      throw user_error(kWhere,
                       "{} puts tensor \"{}\" into {}, which does not hold it; download the "
                       "checkpoint again",
                       (folder / kIndex).string(), name, file);
    }
  }
  for (const auto& [name, file] : out.file_of_) {
    if (!index.file_of.contains(name)) {
      throw user_error(kWhere,
                       "{} holds tensor \"{}\", which {} does not name; download the checkpoint "
                       "again",
                       out.files_[file].path().string(), name, kIndex);
    }
  }
  if (index.total_size && *index.total_size != static_cast<double>(out.total_bytes())) {
    throw user_error(kWhere,
                     "{}: metadata.total_size is {:.0f}, the shards hold {} bytes of tensors; "
                     "download the checkpoint again or correct the number",
                     (folder / kIndex).string(), *index.total_size, out.total_bytes());
  }
  return out;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> out;
  out.reserve(file_of_.size());
  for (const auto& [name, file] : file_of_) {
    out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

const TensorInfo* Checkpoint::find(std::string_view name) const noexcept {
  for (const SafetensorsFile& file : files_) {
    if (const TensorInfo* tensor = file.find(name)) {
      return tensor;
    }
  }
  return nullptr;
}

const TensorInfo& Checkpoint::at(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    throw user_error(kWhere, "{} has no tensor \"{}\"; is it the right checkpoint?",
                     folder_.string(), name);
  }
  return *tensor;
}

std::span<const std::byte> Checkpoint::bytes(std::string_view name) const {
  const TensorInfo& tensor = at(name);
  return files_[file_of_.at(tensor.name)].bytes(tensor);
}

void Checkpoint::read_f32(std::string_view name, std::int64_t begin, std::int64_t end,
                          float* out) const {
  const TensorInfo& tensor = at(name);
  files_[file_of_.at(tensor.name)].read_f32(tensor, begin, end, out);
}

std::uint64_t Checkpoint::total_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& tensor : file.tensors()) {
      bytes += tensor.size_bytes;
    }
  }
  return bytes;
}

}  // namespace tandem
