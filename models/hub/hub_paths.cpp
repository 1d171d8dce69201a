#include "models/hub/hub_paths.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <regex>
#include <string_view>
#include <vector>

#include "models/hub/training_files.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/nearest.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

/// Ends of names that are files'; a hub id may have a dot, too ("Qwen2.5-0.5B").
constexpr std::array<std::string_view, 12> kFileEnds = {
    ".json",  ".jsonl",  ".csv",         ".tsv", ".txt", ".parquet",
    ".arrow", ".tokens", ".safetensors", ".bin", ".idx", ".gz"};

/// Puts the values of environment variables in the place of $A and ${A}, as Python's
/// os.path.expandvars does; one that is not set stays as it is written.
std::string with_variables(const std::string& text) {
  const std::regex variable(R"(\$(?:(\w+)|\{([^}]*)\}))");
  std::string out;
  auto rest = text.begin();
  for (std::sregex_iterator at(rest, text.end(), variable); at != std::sregex_iterator(); ++at) {
    const char* value = std::getenv(((*at)[1].str() + (*at)[2].str()).c_str());
    out.append(rest, (*at)[0].first).append(value != nullptr ? value : at->str());
    rest = (*at)[0].second;
  }
  return out.append(rest, text.end());
}

/// An environment variable that is set to something; "~" at its beginning stands for the home, and
/// it may hold other variables.
std::optional<fs::path> path_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  std::string text = value;
  if (const char* home = std::getenv("HOME"); home != nullptr && text.starts_with("~/")) {
    text.replace(0, 1, home);
  }
  return fs::path(with_variables(text));
}

/// As huggingface_hub has it, which looks for variables in HF_HOME and in the path below it;
/// tools/prepare/hub.py has the same.
fs::path hub_cache() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto cache = path_in(variable)) {
      return *cache;
    }
  }
  const fs::path caches =
      path_in("XDG_CACHE_HOME").value_or(path_in("HOME").value_or(".") / ".cache");
  const fs::path home = path_in("HF_HOME").value_or(caches / "huggingface");
  return with_variables((home / "hub").string());
}

bool is_model_folder(const fs::path& folder) { return fs::is_regular_file(folder / "config.json"); }

/// A hub id and the revision behind it: "org/name@v1.0". An empty revision is the main branch.
struct HubName {
  std::string id;
  std::string revision;
};

HubName hub_name_of(const std::string& name) {
  const std::size_t at = name.find('@', 1);
  if (at == std::string::npos || at + 1 == name.size()) {
    return {.id = name, .revision = ""};
  }
  return {.id = name.substr(0, at), .revision = name.substr(at + 1)};
}

/// The commit that refs/`revision` names (a branch, a tag, "refs/pr/1"); empty: none.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  const fs::path below = fs::path(revision).lexically_normal();
  if (below.is_absolute() || below.begin() == below.end() || *below.begin() == "..") {
    return "";
  }
  std::ifstream file(repository / "refs" / below);
  std::string commit;
  file >> commit;
  return commit.find('/') == std::string::npos ? commit : "";
}

/// A repository of the cache: `kind` is "models" or "datasets".
class HubRepository {
 public:
  HubRepository(std::string kind, const std::string& name)
      : is_model_(kind == "models"), name_(hub_name_of(name)) {
    std::string folder = std::move(kind) + "--" + name_.id;
    for (std::size_t at = folder.find('/'); at != std::string::npos; at = folder.find('/', at)) {
      folder.replace(at, 1, "--");
    }
    folder_ = hub_cache() / folder;
  }

  /// The snapshot of the revision; without one that of the main branch, and where there is no such
  /// branch the only whole one, or the newest of them. Empty: the repository is not there.
  [[nodiscard]] fs::path snapshot() const {
    std::error_code ignored;
    const std::string& asked = name_.revision;
    const std::string commit = commit_of(folder_, asked.empty() ? "main" : asked);
    if (!commit.empty() && is_there(commit)) {
      return whole(folder_ / "snapshots" / commit);
    }
    fs::path found;
    std::size_t matches = 0;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(folder_ / "snapshots", ignored)) {
      if (!asked.empty()) {
        const std::string hash = entry.path().filename().string();
        if (hash.starts_with(asked)) {
          found = entry.path();
          matches = hash == asked ? 1 : matches + 1;
        }
        if (hash == asked) {
          break;
        }
      } else if (is_whole(entry.path()) &&
                 (found.empty() || fs::last_write_time(entry) > fs::last_write_time(found))) {
        found = entry.path();
      }
    }
    if (!asked.empty() && fs::is_directory(folder_, ignored) && matches != 1) {
      throw user_error(room(), "{} has {} revision {} in the cache ({}); {}", name_.id,
                       matches == 0 ? "no" : "several that begin as", asked, folder_.string(),
                       fetch_text());
    }
    return asked.empty() || found.empty() ? found : whole(found);
  }

 private:
  [[nodiscard]] bool is_there(const std::string& commit) const {
    std::error_code ignored;
    return fs::is_directory(folder_ / "snapshots" / commit, ignored);
  }
  [[nodiscard]] bool is_whole(const fs::path& snapshot) const {
    return is_model_ ? is_model_folder(snapshot) : fs::is_directory(snapshot);
  }
  [[nodiscard]] fs::path whole(const fs::path& snapshot) const {
    if (!is_whole(snapshot)) {
      throw user_error(room(), "the download of {} is not whole ({} has no config.json); {}",
                       name_.id, snapshot.string(), fetch_text());
    }
    return snapshot;
  }
  [[nodiscard]] std::string room() const { return is_model_ ? "model" : "dataset"; }
  [[nodiscard]] std::string fetch_text() const {
    return fmt::format("download it (./tandem fetch {} {}{}{})", room(), name_.id,
                       name_.revision.empty() ? "" : "@", name_.revision);
  }

  bool is_model_;
  HubName name_;
  fs::path folder_;
};

fs::path snapshot_of(const std::string& kind, const std::string& name) {
  return HubRepository(kind, name).snapshot();
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
  return rooted || std::ranges::count(hub_name_of(name).id, '/') > 1 || name.ends_with('/') ||
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

/// The one file of a folder that is trained on.
fs::path only_file(const fs::path& folder, const std::string& name) {
  const std::vector<fs::path> files = training_files(folder);
  const auto shown = [&](const fs::path& file) {
    return fs::relative(file, folder).generic_string();
  };
  if (files.empty()) {
    throw user_error("dataset",
                     "{} ({}) holds no file of data to train on; give a .json or .jsonl "
                     "file",
                     name, folder.string());
  }
  if (files.size() > 1) {
    throw user_error("dataset",
                     "{} ({}) holds several files of data: {} and {} more; name one of them, or "
                     "begin with ./tandem train, which prepares them together",
                     name, folder.string(), shown(files.front()), files.size() - 1);
  }
  const std::string extension = files.front().extension().string();
  if (extension != ".json" && extension != ".jsonl") {
    throw user_error("dataset",
                     "{} ({}) holds {}, which ./tandem train and ./tandem prepare read; give a "
                     ".json or .jsonl file",
                     name, folder.string(), shown(files.front()));
  }
  return files.front();
}

}  // namespace

std::string resolved_text(const std::string& name, const fs::path& path) {
  return fmt::format("{} is {}", name, path.string());
}

fs::path resolve_model_folder(const std::string& name) {
  if (fs::is_directory(name)) {
    const fs::path of_run = fs::path(name) / "model";
    return !is_model_folder(name) && is_model_folder(of_run) ? of_run : fs::path(name);
  }
  if (const fs::path snapshot = snapshot_of("models", name); !snapshot.empty()) {
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
  if (const fs::path snapshot = snapshot_of("datasets", name); !snapshot.empty()) {
    return only_file(snapshot, name);
  }
  if (fs::is_directory(name)) {
    return only_file(name, name);
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
