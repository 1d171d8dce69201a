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

#include "actors/storage/folder.hpp"
#include "runtime/system/remove_tree.hpp"

namespace tandem {

namespace fs = std::filesystem;

fs::path make_earlier(const fs::path& folder) {
  for (int number = 1;; ++number) {
    fs::path made = folder / fmt::format("earlier-{}", number);
    if (::mkdir(made.c_str(), 0777) == 0) {
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
  if (::renameat2(AT_FDCWD, before.c_str(), AT_FDCWD, after.c_str(), RENAME_NOREPLACE) == 0) {
    return;
  }
  int error = errno;
  struct stat there{};
  // Where a file system has no such flag; the folder is new, and this process alone writes there.
  if ((error == EINVAL || error == ENOSYS) && ::lstat(after.c_str(), &there) != 0) {
    error = ::rename(before.c_str(), after.c_str()) == 0 ? 0 : errno;
  }
  if (error != 0) {
    throw fs::filesystem_error("cannot move", before, after,
                               std::error_code(error, std::generic_category()));
  }
}

namespace {

/// False: a file cannot have two names here.
bool link_tree(const fs::path& from, const fs::path& to) {
  const fs::file_status status = fs::symlink_status(from);
  if (!fs::is_directory(status)) {
    std::error_code error;
    fs::is_symlink(status) ? fs::copy_symlink(from, to, error)
                           : fs::create_hard_link(from, to, error);
    return !error;
  }
  fs::create_directory(to);
  return std::ranges::all_of(fs::directory_iterator(from), [&](const auto& entry) {
    return is_abandoned_file(entry.path().filename().string()) ||
           link_tree(entry.path(), to / entry.path().filename());
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
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (std::string name = entry.path().filename(); is_earlier(name)) {
      earlier.push_back(std::move(name));
    }
  }
  if (earlier.empty()) {
    return std::nullopt;
  }
  fs::path aside = make_earlier(folder);
  for (const std::string& name : earlier) {
    if (name == open) {
      fs::copy_file(folder / name, aside / name);
    } else {
      move_entry(folder, aside, name);
    }
  }
  return aside;
}

}  // namespace tandem
