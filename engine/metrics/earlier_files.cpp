#include "engine/metrics/earlier_files.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>

namespace tandem {

namespace fs = std::filesystem;

std::optional<fs::path> move_aside(const fs::path& folder,
                                   const std::function<bool(std::string_view name)>& is_earlier,
                                   std::string_view open) {
  std::vector<fs::path> earlier;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (is_earlier(entry.path().filename().string())) {
      earlier.push_back(entry.path());
    }
  }
  if (earlier.empty()) {
    return std::nullopt;
  }
  int number = 1;
  while (fs::exists(folder / fmt::format("earlier-{}", number))) {
    ++number;
  }
  fs::path aside = folder / fmt::format("earlier-{}", number);
  fs::create_directory(aside);
  for (const fs::path& path : earlier) {
    if (path.filename() == open) {
      fs::copy_file(path, aside / path.filename());
    } else {
      fs::rename(path, aside / path.filename());
    }
  }
  return aside;
}

}  // namespace tandem
