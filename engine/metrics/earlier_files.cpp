#include "engine/metrics/earlier_files.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>

#include "actors/storage/file.hpp"
#include "actors/storage/folder.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/system/remove_tree.hpp"

namespace tandem {

namespace fs = std::filesystem;

fs::path make_earlier(const fs::path& folder) {
  for (int number = 1;; ++number) {
    fs::path made = folder / fmt::format("earlier-{}", number);
    if (reach::make_folder(made) == 0) {
      return made;
    }
    if (errno != EEXIST) {  // also where a link or a file has the name
      throw fs::filesystem_error("cannot make the folder", made,
                                 std::error_code(errno, std::generic_category()));
    }
  }
}

void move_entry(const fs::path& from, const fs::path& to, std::string_view name) {
  const fs::path before = from / name;
  const fs::path after = to / name;
  if (reach::rename(before, after, RENAME_NOREPLACE) == 0) {
    return;
  }
  int error = errno;
  struct stat there{};
  // Where a file system has no such flag; the folder is new, and this process alone writes there.
  if ((error == EINVAL || error == ENOSYS) && reach::status(after, there) != 0) {
    error = reach::rename(before, after) == 0 ? 0 : errno;
  }
  if (error != 0) {
    throw fs::filesystem_error("cannot move", before, after,
                               std::error_code(error, std::generic_category()));
  }
}

namespace {

/// False: a file cannot have two names here.
bool link_tree(const fs::path& from, const fs::path& to) {
  struct stat found{};
  if (reach::status(from, found) != 0 || !S_ISDIR(found.st_mode)) {
    return reach::link(from, to) == 0;
  }
  std::vector<std::string> names;
  return reach::make_folder(to) == 0 && reach::list(from, names) == 0 &&
         std::ranges::all_of(names, [&](const std::string& name) {
           return is_abandoned_file(name) || link_tree(from / name, to / name);
         });
}

}  // namespace

void link_entry(const fs::path& from, const fs::path& to, std::string_view name) {
  if (!link_tree(from / name, to / name)) {
    (void)remove_tree((to / name).string());
    move_entry(from, to, name);
  }
}

std::optional<fs::path> move_aside(const fs::path& folder,
                                   const std::function<bool(std::string_view name)>& is_earlier,
                                   std::string_view open) {
  std::vector<std::string> earlier;
  if (reach::list(folder, earlier) != 0) {
    throw fs::filesystem_error("cannot list", folder,
                               std::error_code(errno, std::generic_category()));
  }
  std::erase_if(earlier, [&](const std::string& name) { return !is_earlier(name); });
  if (earlier.empty()) {
    return std::nullopt;
  }
  fs::path aside = make_earlier(folder);
  for (const std::string& name : earlier) {
    if (name == open) {
      write_file(aside / name, "output", read_file(folder / name, "output", UINT64_MAX));
    } else {
      move_entry(folder, aside, name);
    }
  }
  return aside;
}

}  // namespace tandem
