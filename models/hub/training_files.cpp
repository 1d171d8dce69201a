#include "models/hub/training_files.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <string>
#include <utility>

#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 5> kTexts = {".jsonl", ".json", ".csv", ".tsv", ".txt"};
constexpr std::array<std::string_view, 3> kOthers = {".parquet", ".arrow", ".bin"};
constexpr std::array<std::string_view, 2> kPacked = {".gz", ".xz"};
constexpr std::array<std::string_view, 4> kDescriptions = {
    "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kWords = {{
    {"train", "train"},
    {"training", "train"},
    {"test", "test"},
    {"testing", "test"},
    {"eval", "test"},
    {"evaluation", "test"},
    {"validation", "validation"},
    {"valid", "validation"},
    {"val", "validation"},
    {"dev", "validation"},
}};

template <std::size_t kCount>
bool has(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Notebooks, archives and downloads leave copies under such names; `datasets` reads none of them.
bool is_hidden(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') || name.starts_with("__");
}

/// An interrupted download leaves such links.
bool dangles(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(path, ignored) && !fs::exists(path, ignored);
}

bool is_data(const fs::path& path) {
  fs::path name = path.filename();
  if (has(kDescriptions, name.string())) {
    return false;
  }
  const bool packed = has(kPacked, name.extension().string());
  if (packed) {
    name = name.stem();
  }
  const std::string kind = name.extension().string();
  return has(kTexts, kind) || (!packed && has(kOthers, kind));
}

/// Whether README.md lists configs between its first lines of ---.
bool has_configs(const fs::path& folder) {
  std::ifstream file(folder / "README.md");
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("---")) {
    return false;
  }
  while (std::getline(file, line) && !line.starts_with("---")) {
    if (line.starts_with("configs:")) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string_view split_of(std::string_view path) {
  std::string_view found;
  std::string word;
  const auto end_word = [&] {
    const auto known = std::ranges::find(kWords, std::string_view(word),
                                         &std::pair<std::string_view, std::string_view>::first);
    if (known != kWords.end()) {
      found = known->second;
    }
    word.clear();
  };
  for (const char c : path) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    } else {
      end_word();
    }
  }
  end_word();
  return found;
}

std::vector<fs::path> training_files(const fs::path& folder) {
  if (has_configs(folder)) {
    throw user_error("data",
                     "the README.md of {} lists configs, among which ./tandem prepare "
                     "--dataset_config NAME chooses; give its token file, or use ./tandem train",
                     folder.string());
  }
  std::vector<fs::path> train;
  std::vector<fs::path> plain;
  for (auto at = fs::recursive_directory_iterator(folder); at != fs::end(at); ++at) {
    const fs::directory_entry& entry = *at;
    if (is_hidden(entry.path())) {
      at.disable_recursion_pending();
      continue;
    }
    if (!is_data(entry.path()) || !(entry.is_regular_file() || dangles(entry.path()))) {
      continue;
    }
    const std::string_view split = split_of(fs::relative(entry.path(), folder).generic_string());
    if (split == "train") {
      train.push_back(entry.path());
    } else if (split.empty()) {
      plain.push_back(entry.path());
    }
  }
  std::vector<fs::path>& chosen = train.empty() ? plain : train;
  std::ranges::sort(chosen);
  if (const auto absent = std::ranges::find_if(chosen, dangles); absent != chosen.end()) {
    throw user_error("data",
                     "{} is a link to a file that is not there, as an interrupted download leaves "
                     "it; download it again",
                     absent->string());
  }
  return chosen;
}

}  // namespace tandem
