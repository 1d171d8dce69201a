#include "models/io/checkpoint.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

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
  return index;
}

/// "model-00001-of-00003.safetensors" -> "-of-00003.safetensors"; empty for other names.
std::string shard_ending(const std::string& name) {
  const std::size_t at = name.rfind("-of-");
  return at == std::string::npos ? std::string{} : name.substr(at);
}

/// Shards that lie beside those of the index, as an older or a broken download leaves them.
std::vector<std::string> undeclared_shards(const std::filesystem::path& folder,
                                           const ShardIndex& index) {
  std::vector<std::string> others;
  const std::string ending = shard_ending(*index.files.begin());
  if (ending.empty()) {
    return others;
  }
  const std::string start = index.files.begin()->substr(0, index.files.begin()->find('-') + 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(start) && name.ends_with(ending) && !index.files.contains(name)) {
      others.push_back(name);
    }
  }
  std::ranges::sort(others);
  return others;
}

/// Where the index says something else than the shards hold.
std::vector<std::string> differences(const ShardIndex& index,
                                     const std::unordered_map<std::string, std::string>& held) {
  std::vector<std::string> unnamed;
  std::vector<std::string> elsewhere;
  for (const auto& [name, file] : held) {
    const auto named = index.file_of.find(name);
    if (named == index.file_of.end()) {
      unnamed.push_back(name);
    } else if (named->second != file) {
      elsewhere.push_back(name);
    }
  }
  std::vector<std::string> absent;
  for (const auto& [name, file] : index.file_of) {
    if (!held.contains(name)) {
      absent.push_back(name);
    }
  }
  std::vector<std::string> notes;
  const auto note = [&notes](std::vector<std::string> names, std::string_view what) {
    if (!names.empty()) {
      std::ranges::sort(names);
      notes.push_back(fmt::format("{} {} ({} of them, {} the first)", kIndex, what, names.size(),
                                  names.front()));
    }
  };
  note(std::move(unnamed), "does not name tensors that its shards hold; they are read");
  note(std::move(elsewhere), "puts tensors into other shards than hold them; the shards count");
  note(std::move(absent), "names tensors that no shard holds");
  return notes;
}

/// Returns the end of the message "FOLDER holds NAME...": the kind of an entry that is no weights
/// of ours, and the command that reads it; empty: the name tells nothing.
std::string told_by(const std::filesystem::path& entry, const std::filesystem::path& folder) {
  const std::string name = entry.filename().string();
  const std::string extension = entry.extension().string();
  const std::string convert =
      fmt::format("; make a model: ./tandem convert {} NEW_FOLDER --to hf", folder.string());
  if (std::filesystem::is_directory(entry)) {
    if (std::filesystem::exists(entry / kSingle) || std::filesystem::exists(entry / kIndex)) {
      return fmt::format(", which has the weights; give {}", entry.string());
    }
    const bool is_deepspeed = name.starts_with("global_step");
    return is_deepspeed ? ", a checkpoint of DeepSpeed" + convert
           : name.starts_with("pytorch_model_fsdp") || name.starts_with("distributed_checkpoint")
               ? ", a sharded checkpoint of FSDP; make one file of it: accelerate merge-weights"
               : "";
  }
  if (extension == ".incomplete" || extension == ".part" || extension == ".aria2" ||
      extension == ".crdownload") {
    return ", a download that has not ended; download it again";
  }
  if (name.starts_with("consolidated.")) {
    return fmt::format(
        ", weights as {} publishes them; take the files of the same model in the "
        "form of Transformers",
        extension == ".pth" ? "Meta" : "Mistral");
  }
  if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".distcp") {
    return fmt::format(" but no {}, and pickle files are no models here{}", kSingle, convert);
  }
  if (extension == ".safetensors" && name.find("-of-") != std::string::npos) {
    return fmt::format(" but no {}, which says what each shard has; download it, too", kIndex);
  }
  if (extension == ".safetensors" && !name.starts_with("adapter")) {
    return fmt::format(
        ", which is no name of a model's weights; if they have Transformers' names, call it {}",
        kSingle);
  }
  constexpr std::string_view kSave =
      "; load it by Transformers (or its maker's converter) and save it by save_pretrained";
  if (extension == ".gguf") {
    return ", a GGUF file of llama.cpp; take the model's safetensors";
  }
  if (extension == ".h5" || extension == ".msgpack" || extension == ".onnx" ||
      extension == ".ckpt" || extension == ".npz" || extension == ".nemo") {
    return fmt::format(", weights of another library{}", kSave);
  }
  return name == "latest_checkpointed_iteration.txt"
             ? fmt::format(", a checkpoint of Megatron{}", kSave)
             : "";
}

}  // namespace

std::string told_by_entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    entries.push_back(entry.path());
  }
  std::ranges::sort(entries);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (const std::string told = told_by(*entry, folder); !told.empty()) {
      return fmt::format("{} holds {}{}", folder.string(), entry->filename().string(), told);
    }
  }
  return "";
}

namespace {

[[noreturn]] void no_weights(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw user_error(kWhere, "{} is not a folder; give the folder of a Hugging Face model",
                     folder.string());
  }
  if (const std::string told = told_by_entries(folder); !told.empty()) {
    throw user_error(kWhere, "{}", told);
  }
  throw user_error(kWhere, "{} has neither {} nor {}; give the folder of a Hugging Face model",
                   folder.string(), kSingle, kIndex);
}

}  // namespace

void Checkpoint::add_file(const std::filesystem::path& path) {
  files_.push_back(SafetensorsFile::open(path));
  for (const TensorInfo& tensor : files_.back().tensors()) {
    const auto [place, is_new] = file_of_.emplace(tensor.name, files_.size() - 1);
    if (is_new) {
      continue;
    }
    const SafetensorsFile& first = files_[place->second];
    const TensorInfo& other = *first.find(tensor.name);
    if (other.type != tensor.type || other.shape != tensor.shape ||
        !std::ranges::equal(first.bytes(other), files_.back().bytes(tensor))) {
      throw user_error(kWhere,
                       "tensor \"{}\" has one value in {} and another in {}; remove one, or "
                       "download the checkpoint again",
                       tensor.name, first.path().string(), path.string());
    }
    notes_.push_back(fmt::format("{} is in {} and, with the same value, in {}", tensor.name,
                                 first.path().filename().string(), path.filename().string()));
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
  for (const std::string& file : index.files) {
    if (!std::filesystem::exists(folder / file, ignored)) {
      throw user_error(kWhere, "{} names {}, which is not there; download the missing shard",
                       (folder / kIndex).string(), file);
    }
    out.add_file(folder / file);
  }
  std::unordered_map<std::string, std::string> held;
  for (const auto& [name, file] : out.file_of_) {
    held.emplace(name, out.files_[file].path().filename().string());
  }
  const std::vector<std::string> found = differences(index, held);
  out.notes_.insert(out.notes_.end(), found.begin(), found.end());
  for (const std::string& other : undeclared_shards(folder, index)) {
    out.notes_.push_back(
        fmt::format("{} lies beside {}, which does not name it; it is not read", other, kIndex));
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
