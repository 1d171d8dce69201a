// runtime/system/reach.hpp — calls by path that follow no link within a program's own folders.
//
// Invariant: no link leads a call out of an own folder, even if another process puts the link in
// the place of a name there, at any moment. The folder is opened once, and everything below is
// reached from its descriptor. A path that lies in no own folder goes to the system as it is. Any
// thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sys/stat.h>

namespace tandem {

struct HeldFolder;

/// While it lives, the calls below follow no link within the folder. A link in its place, or on the
/// way to it, is followed now, for the last time. Own folders may lie in one another; a folder that
/// a link leads to is named by the path through that link. If the folder is removed and made again,
/// the new folder is meant. Nothing is held if `path` cannot be opened as a folder.
class OwnFolder {
 public:
  OwnFolder() noexcept = default;
  explicit OwnFolder(const std::string& path);
  ~OwnFolder();
  OwnFolder(OwnFolder&& other) noexcept = default;
  OwnFolder& operator=(OwnFolder&& other) noexcept;

 private:
  std::shared_ptr<const HeldFolder> held_;
};

// They fail as the system calls do, with -1 and the reason in errno. Within an own folder ELOOP
// means that a link is in the way.
namespace reach {

/// True if `path` is an own folder, or lies in one.
[[nodiscard]] bool is_own(const std::string& path) noexcept;
[[nodiscard]] int open(const std::string& path, int flags, unsigned mode = 0) noexcept;
/// `flags`: those of renameat2.
[[nodiscard]] int rename(const std::string& from, const std::string& to,
                         unsigned flags = 0) noexcept;
/// Gives a file, or a link itself, a second name.
[[nodiscard]] int link(const std::string& from, const std::string& to) noexcept;
[[nodiscard]] int make_folder(const std::string& path) noexcept;
/// Removes a file, or a link itself.
[[nodiscard]] int remove(const std::string& path) noexcept;
/// Removes an empty folder.
[[nodiscard]] int remove_folder(const std::string& path) noexcept;
/// Finds the status of `path`; for a link, that of the link itself.
[[nodiscard]] int status(const std::string& path, struct stat& found) noexcept;
/// Lists the names in a folder, without "." and "..".
[[nodiscard]] int list(const std::string& path, std::vector<std::string>& names) noexcept;
/// Lists an open folder; takes the descriptor over and closes it.
[[nodiscard]] int list_open(int folder, std::vector<std::string>& names) noexcept;

}  // namespace reach
}  // namespace tandem
