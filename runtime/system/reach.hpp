// runtime/system/reach.hpp — calls by path that follow no link within a program's own folders.
//
// Invariant: a link that another process puts in the place of a name within an own folder, at any
// moment, leads no call out of it. The folder is opened once, and everything below is reached from
// its descriptor. A path that lies in no own folder goes to the system as it is. Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sys/stat.h>

namespace tandem {

struct HeldFolder;

/// While it lives, the calls below follow no link within the folder. A link in its place, or on the
/// way to it, is followed now, for the last time. Own folders may lie in one another: a folder that
/// a link leads to is named by the path through that link. One that is removed and made again is
/// the new folder. Nothing is held where `path` cannot be opened as a folder.
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

// As the system calls: -1 and why in errno. ELOOP within an own folder: a link is in the way.
namespace reach {

/// Whether `path` is an own folder, or lies in one.
[[nodiscard]] bool is_own(const std::string& path) noexcept;
[[nodiscard]] int open(const std::string& path, int flags, unsigned mode = 0) noexcept;
/// `flags`: those of renameat2.
[[nodiscard]] int rename(const std::string& from, const std::string& to,
                         unsigned flags = 0) noexcept;
/// A second name of a file, or of a link itself.
[[nodiscard]] int link(const std::string& from, const std::string& to) noexcept;
[[nodiscard]] int make_folder(const std::string& path) noexcept;
/// A file, or a link itself.
[[nodiscard]] int remove(const std::string& path) noexcept;
/// An empty one.
[[nodiscard]] int remove_folder(const std::string& path) noexcept;
/// That of a link itself.
[[nodiscard]] int status(const std::string& path, struct stat& found) noexcept;
/// The names in it, without "." and "..".
[[nodiscard]] int list(const std::string& path, std::vector<std::string>& names) noexcept;
/// The same of an open folder; takes the descriptor.
[[nodiscard]] int list_open(int folder, std::vector<std::string>& names) noexcept;

}  // namespace reach
}  // namespace tandem
