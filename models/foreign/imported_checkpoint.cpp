#include "models/foreign/imported_checkpoint.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/storage/file.hpp"
#include "models/foreign/converter.hpp"
#include "models/foreign/foreign_index.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostTagBytes = 4096;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_pytorch_files(const fs::path& folder) {
  const bool safetensors =
      is_there(folder / "model.safetensors") || is_there(folder / "model.safetensors.index.json");
  return !safetensors && (is_there(folder / "pytorch_model.bin") ||
                          is_there(folder / "pytorch_model.bin.index.json"));
}

/// Whether a file there has a name of DeepSpeed's: [bf16_]zero_pp_rank_R_mp_rank_00_..., or without
/// ranks.
bool has_deepspeed_files(const fs::path& folder) {
  static const std::regex names(
      "(bf16_|fp16_)?(zero_pp_rank_[0-9]+_)?mp_rank_[0-9]+_(model|optim)_states\\.pt");
  std::error_code ignored;
  return std::ranges::any_of(fs::directory_iterator(folder, ignored),
                             [](const fs::directory_entry& entry) {
                               return std::regex_match(entry.path().filename().string(), names);
                             });
}

bool is_universal(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder / "zero", ignored);
}

/// Folders of DeepSpeed's tags, of which a file `latest` would name one; by their names. A run's
/// own checkpoints are not looked into: that is done by descriptor.
std::vector<std::string> tags_in(const fs::path& folder) {
  std::vector<std::string> tags;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (!step_of_checkpoint(entry.path().filename().string()) && entry.is_directory(ignored) &&
        has_deepspeed_files(entry.path())) {
      tags.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(tags, {}, [](const std::string& tag) { return std::pair(tag.size(), tag); });
  return tags;
}

/// Whether torch.distributed.checkpoint wrote it (FSDP).
bool is_distributed(const fs::path& folder) {
  std::error_code ignored;
  return std::ranges::any_of(
      fs::directory_iterator(folder, ignored),
      [](const fs::directory_entry& entry) { return entry.path().extension() == ".distcp"; });
}

/// Throws for a folder that is known by its names and not read as it is.
void refuse_by_names(const fs::path& path) {
  if (const std::vector<std::string> tags = tags_in(path); !tags.empty()) {
    throw user_error("import",
                     "{} has no file `latest`, which says which of its tags counts ({}); name one, "
                     "as {}, or write its name into {}",
                     path.string(), one_line(fmt::format("{}", fmt::join(tags, ", "))),
                     (path / tags.back()).string(), (path / "latest").string());
  }
  if (is_distributed(path)) {
    throw user_error("import",
                     "{} is a sharded checkpoint of torch (FSDP); make one file of it: python -m "
                     "torch.distributed.checkpoint.format_utils dcp_to_torch {} pytorch_model.bin",
                     path.string(), path.string());
  }
}

/// The folder that `latest` names.
fs::path tagged(const fs::path& folder, const char* latest) {
  std::string tag = read_file(folder / latest, "import", kMostTagBytes);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ' || tag.back() == '\r')) {
    tag.pop_back();
  }
  const bool plain = !tag.empty() && tag.find('/') == std::string::npos &&
                     tag.find('\0') == std::string::npos && tag != "." && tag != "..";
  std::error_code ignored;
  if (!plain || !fs::is_directory(folder / tag, ignored)) {
    throw user_error("import",
                     "{} names \"{}\", which is no folder beside it; copy the whole checkpoint, or "
                     "give the folder of a tag",
                     (folder / latest).string(), one_line(tag));
  }
  return folder / tag;
}

/// The kind of the checkpoint, and the folder or file that is read.
std::pair<std::string, fs::path> kind_of(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    return {"pytorch", path};
  }
  if (is_there(path / "latest")) {
    return {"deepspeed", tagged(path, "latest")};
  }
  if (is_there(path / "latest_universal")) {
    return {"universal", tagged(path, "latest_universal")};
  }
  if (is_universal(path)) {
    return {"universal", path};
  }
  if (has_deepspeed_files(path)) {
    return {"deepspeed", path};
  }
  if (has_pytorch_files(path)) {
    return {"pytorch", path};
  }
  refuse_by_names(path);
  throw user_error("import",
                   "{} holds no checkpoint of DeepSpeed (a file `latest`, or *_model_states.pt) "
                   "and no pytorch_model.bin; give the folder that was saved into",
                   path.string());
}

/// std::filesystem's own errors (a folder that may not be read) as ours.
std::pair<std::string, fs::path> kind_in_one_line(const fs::path& path) {
  try {
    return kind_of(path);
  } catch (const fs::filesystem_error& error) {
    throw user_error("import", "cannot read {}: {}; check the path and its permissions",
                     path.string(), error.code().message());
  }
}

}  // namespace

std::int64_t ImportedTensor::numel() const noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

const ImportedTensor* ImportedCheckpoint::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(tensors, name, &ImportedTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

bool is_foreign_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    const fs::path ending = path.extension();
    return ending == ".bin" || ending == ".pt" || ending == ".pth";
  }
  return is_there(path / "latest") || is_there(path / "latest_universal") ||
         has_deepspeed_files(path) || has_pytorch_files(path) || !tags_in(path).empty() ||
         is_distributed(path);
}

ImportedCheckpoint open_foreign_checkpoint(const fs::path& path) {
  const auto [kind, found] = kind_in_one_line(path);
  std::error_code ignored;
  const fs::path folder = fs::is_directory(found, ignored) ? found : found.parent_path();
  const std::string index = Converter({"read", kind, found.string()}).finish();
  ImportedCheckpoint checkpoint = read_foreign_index(index, folder);
  checkpoint.path = found.string();
  return checkpoint;
}

}  // namespace tandem
