#include "models/hub_paths.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "runtime/util/error.hpp"
#include "runtime/util/nearest.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

/// Ends of names that are files'; a hub id may have a dot, too ("Qwen2.5-0.5B").
constexpr std::array<std::string_view, 12> kFileEnds = {
    ".json",  ".jsonl",  ".csv",         ".tsv", ".txt", ".parquet",
    ".arrow", ".tokens", ".safetensors", ".bin", ".idx", ".gz"};

fs::path hub_cache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE")) {
    return cache;
  }
  if (const char* home = std::getenv("HF_HOME")) {
    return fs::path(home) / "hub";
  }
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : ".") / ".cache" / "huggingface" / "hub";
}

/// The newest snapshot of a hub id in the cache (kind: "models" or "datasets"); empty when there is
/// none.
fs::path newest_snapshot(const std::string& kind, const std::string& id) {
  std::string folder = kind + "--" + id;
  for (std::size_t at = folder.find('/'); at != std::string::npos; at = folder.find('/', at)) {
    folder.replace(at, 1, "--");
  }
  const fs::path snapshots = hub_cache() / folder / "snapshots";
  fs::path newest;
  if (fs::is_directory(snapshots)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(snapshots)) {
      if (newest.empty() || fs::last_write_time(entry) > fs::last_write_time(newest)) {
        newest = entry.path();
      }
    }
  }
  return newest;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code unreadable;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unreadable)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

/// Whether something here has that name but for a slip.
bool is_slip(const std::string& name) {
  constexpr std::size_t kLetters = 5;  // a slip is one letter of as many
  return std::ranges::any_of(names_in("."), [&](const std::string& there) {
    return edit_distance(name, there) * kLetters <= name.size();
  });
}

/// Whether a name that is not there is meant as a path.
bool looks_like_path(const std::string& name) {
  const fs::path path = name;
  const bool rooted = name.starts_with('/') || name.starts_with('.') || name.starts_with('~');
  return rooted || std::ranges::count(name, '/') > 1 || name.ends_with('/') ||
         std::ranges::find(kFileEnds, path.extension().string()) != kFileEnds.end() ||
         (path.has_parent_path() ? fs::is_directory(path.parent_path()) : is_slip(name));
}

/// "data/alpca.json: no such file or folder; the nearest name in data is alpaca.json".
std::string no_such_path(const std::string& name) {
  fs::path there = fs::path(name).is_absolute() ? "/" : ".";
  std::string missing;
  for (const fs::path& part : fs::path(name).relative_path()) {
    if (!fs::is_directory(there / part)) {
      missing = part.string();
      break;
    }
    there /= part;
  }
  const std::vector<std::string> names = names_in(there);
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string folder = there.lexically_normal().string();
  return fmt::format("{}: no such file or folder; {}", name,
                     names.empty() ? fmt::format("{} is empty", folder)
                                   : fmt::format("the nearest name in {} is {}", folder,
                                                 nearest_name(missing, views)));
}

bool is_model_folder(const fs::path& folder) { return fs::is_regular_file(folder / "config.json"); }

}  // namespace

fs::path resolve_model_folder(const std::string& name) {
  if (fs::is_directory(name)) {
    const fs::path of_run = fs::path(name) / "model";
    return !is_model_folder(name) && is_model_folder(of_run) ? of_run : fs::path(name);
  }
  if (const fs::path snapshot = newest_snapshot("models", name); !snapshot.empty()) {
    return snapshot;
  }
  if (fs::exists(name)) {
    throw user_error("model", "{} is a file; give the folder that it lies in", name);
  }
  if (looks_like_path(name)) {
    throw user_error("model", "{}", no_such_path(name));
  }
  throw user_error("model",
                   "{} is neither a folder nor in the Hugging Face cache {}; give a folder, or "
                   "download it first (./tandem fetch model {})",
                   name, hub_cache().string(), name);
}

fs::path resolve_dataset_file(const std::string& name) {
  if (fs::is_regular_file(name)) {
    return name;
  }
  if (const fs::path snapshot = newest_snapshot("datasets", name); !snapshot.empty()) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(snapshot)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".json" || extension == ".jsonl") {
        return entry.path();
      }
    }
    throw user_error("dataset", "the cached {} holds no .json or .jsonl file; convert it to one",
                     name);
  }
  if (fs::is_directory(name)) {
    throw user_error("dataset", "{} is a folder; give a .json or .jsonl file", name);
  }
  if (looks_like_path(name)) {
    throw user_error("dataset", "{}", no_such_path(name));
  }
  throw user_error("dataset",
                   "{} is neither a .json or .jsonl file nor in the Hugging Face cache {}; give a "
                   "file with instruction and output, or download it (./tandem fetch dataset {})",
                   name, hub_cache().string(), name);
}

}  // namespace tandem
