#include "runtime/system/reach.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

struct HeldFolder {
  OwnedDescriptor folder;
  std::string given;  // absolute, as the program calls it
  std::string whole;  // without links
};

namespace {

struct OwnFolders {
  std::mutex mutex;
  std::vector<std::shared_ptr<const HeldFolder>> held;
  std::atomic<int> count = 0;  // without the mutex: most programs have none

  static OwnFolders& all() {
    static auto* const folders = new OwnFolders;  // threads may outlive static objects
    return *folders;
  }
};

/// Absolute, with one slash between names and without ".": links and ".." are left as they are.
std::string absolute(const std::string& path) {
  std::string whole = path.starts_with('/') ? "" : std::filesystem::current_path().string();
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view name = std::string_view(path).substr(at, end - at);
    if (!name.empty() && name != ".") {
      whole.append("/").append(name);
    }
    at = end + 1;
  }
  return whole.empty() ? "/" : whole;
}

/// The way from `folder` to `path`; "." for itself; empty: it does not lie there.
std::string_view way_from(std::string_view folder, std::string_view path) {
  if (path == folder) {
    return ".";
  }
  const std::size_t end = folder == "/" ? 0 : folder.size();
  const bool lies_there = !folder.empty() && path.starts_with(folder) && path.substr(end, 1) == "/";
  return lies_there ? path.substr(end + 1) : std::string_view();
}

/// A folder that is reached by no link.
int open_way(int from, const std::string& way) noexcept {
  constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;
  open_how how{};
  how.flags = static_cast<std::uint64_t>(kFolder);
  how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH;
  const long opened = ::syscall(SYS_openat2, from, way.c_str(), &how, sizeof how);  // Linux 5.6
  if (opened >= 0 || (errno != ENOSYS && errno != EPERM && errno != EINVAL)) {
    return static_cast<int>(opened);
  }
  int at = ::openat(from, ".", kFolder);
  for (std::size_t begin = 0; begin < way.size() && at >= 0;) {
    const std::size_t end = std::min(way.find('/', begin), way.size());
    const std::string name = way.substr(begin, end - begin);
    struct stat found{};
    const bool is_link =
        ::fstatat(at, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode);
    const int next = name == ".." ? -1 : ::openat(at, name.c_str(), kFolder | O_NOFOLLOW);
    const int error = name == ".." ? EXDEV : is_link ? ELOOP : errno;
    ::close(at);
    errno = error;
    at = next;
    begin = end + 1;
  }
  return at;
}

/// A folder that was removed and is there again, by the path that has no links; -1: it was not
/// removed, or is not there.
int open_again(const HeldFolder& held) noexcept {
  struct stat found{};
  if (::fstat(held.folder.get(), &found) != 0 || found.st_nlink > 0) {
    return -1;
  }
  const OwnedDescriptor root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  return open_way(root.get(), held.whole.substr(1));
}

/// Where a call for a path goes: to `name` in `folder`.
class Place {
 public:
  /// `itself`: an own folder is reached as "." in it; else as a name in the folder around it.
  Place(const std::string& path, bool itself) {
    name_ = path;
    OwnFolders& own = OwnFolders::all();
    if (path.empty() || own.count.load(std::memory_order_acquire) == 0) {
      return;
    }
    const std::string whole = absolute(path);
    std::string way;
    {
      const std::lock_guard lock(own.mutex);
      for (const auto& held : own.held) {
        for (const std::string& folder : {held->given, held->whole}) {
          const std::string_view found = way_from(folder, whole);
          const bool is_nearer = way.empty() || found.size() < way.size();
          if (!found.empty() && (itself || found != ".") && is_nearer) {
            way = found;
            held_ = held;
          }
        }
      }
    }
    if (held_ == nullptr) {
      return;
    }
    const OwnedDescriptor again(open_again(*held_));
    const int from = again.get() >= 0 ? again.get() : held_->folder.get();
    const std::size_t slash = way.rfind('/');
    name_ = slash == std::string::npos ? way : way.substr(slash + 1);
    folder_ =
        OwnedDescriptor(open_way(from, slash == std::string::npos ? "." : way.substr(0, slash)));
    if (name_ == "..") {
      folder_ = OwnedDescriptor();
      errno = EXDEV;
    }
  }
  [[nodiscard]] bool is_own() const noexcept { return held_ != nullptr; }
  /// False: why not is in errno.
  [[nodiscard]] bool is_there() const noexcept { return held_ == nullptr || folder_.get() >= 0; }
  [[nodiscard]] int folder() const noexcept { return held_ == nullptr ? AT_FDCWD : folder_.get(); }
  [[nodiscard]] const char* name() const noexcept { return name_.c_str(); }

 private:
  std::shared_ptr<const HeldFolder> held_;
  OwnedDescriptor folder_;
  std::string name_;
};

/// The result of `call` for the place; -1 where the place is not reached.
template <class Call>
int call_at(const std::string& path, bool itself, Call call) noexcept {
  try {
    const Place place(path, itself);
    return place.is_there() ? call(place) : -1;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
  } catch (const std::filesystem::filesystem_error& error) {  // of the current folder
    errno = error.code().value();
  }
  return -1;
}

template <class Call>
int call_at_both(const std::string& one, const std::string& other, Call call) noexcept {
  return call_at(one, false, [&](const Place& from) {
    return call_at(other, false, [&](const Place& to) { return call(from, to); });
  });
}

}  // namespace

OwnFolder::OwnFolder(const std::string& path) {
  OwnedDescriptor folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::error_code error;
  std::string whole = std::filesystem::canonical(path, error);
  if (folder.get() < 0 || error) {
    return;
  }
  held_ = std::make_shared<const HeldFolder>(
      HeldFolder{.folder = std::move(folder), .given = absolute(path), .whole = std::move(whole)});
  OwnFolders& own = OwnFolders::all();
  const std::lock_guard lock(own.mutex);
  own.held.push_back(held_);
  own.count.fetch_add(1, std::memory_order_release);
}

OwnFolder::~OwnFolder() {
  if (held_ != nullptr) {
    OwnFolders& own = OwnFolders::all();
    const std::lock_guard lock(own.mutex);
    own.held.erase(std::ranges::find(own.held, held_));
    own.count.fetch_sub(1, std::memory_order_release);
  }
}

OwnFolder& OwnFolder::operator=(OwnFolder&& other) noexcept {
  std::swap(held_, other.held_);
  return *this;
}

namespace reach {

bool is_own(const std::string& path) noexcept {
  return call_at(path, true, [](const Place& place) { return place.is_own() ? 1 : 0; }) != 0;
}

int open(const std::string& path, int flags, unsigned mode) noexcept {
  return call_at(path, true, [&](const Place& place) {
    const int no_link = place.is_own() ? O_NOFOLLOW : 0;
    const int opened = ::openat(place.folder(), place.name(), flags | no_link, mode);
    const int error = errno;
    struct stat found{};
    const bool is_link =
        opened < 0 && error == ENOTDIR && place.is_own() &&
        ::fstatat(place.folder(), place.name(), &found, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISLNK(found.st_mode);
    errno = is_link ? ELOOP : error;
    return opened;
  });
}

int rename(const std::string& from, const std::string& to, unsigned flags) noexcept {
  return call_at_both(from, to, [flags](const Place& one, const Place& other) {
    return flags == 0 ? ::renameat(one.folder(), one.name(), other.folder(), other.name())
                      : ::renameat2(one.folder(), one.name(), other.folder(), other.name(), flags);
  });
}

int link(const std::string& from, const std::string& to) noexcept {
  return call_at_both(from, to, [](const Place& one, const Place& other) {
    return ::linkat(one.folder(), one.name(), other.folder(), other.name(), 0);
  });
}

int make_folder(const std::string& path) noexcept {
  return call_at(path, false,
                 [](const Place& place) { return ::mkdirat(place.folder(), place.name(), 0777); });
}

int remove(const std::string& path) noexcept {
  return call_at(path, false,
                 [](const Place& place) { return ::unlinkat(place.folder(), place.name(), 0); });
}

int remove_folder(const std::string& path) noexcept {
  return call_at(path, false, [](const Place& place) {
    return ::unlinkat(place.folder(), place.name(), AT_REMOVEDIR);
  });
}

int status(const std::string& path, struct stat& found) noexcept {
  return call_at(path, false, [&](const Place& place) {
    return ::fstatat(place.folder(), place.name(), &found, AT_SYMLINK_NOFOLLOW);
  });
}

int list(const std::string& path, std::vector<std::string>& names) noexcept {
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return folder < 0 ? -1 : list_open(folder, names);
}

int list_open(int folder, std::vector<std::string>& names) noexcept {
  DIR* stream = ::fdopendir(folder);
  if (stream == nullptr) {
    const int error = errno;
    ::close(folder);
    errno = error;
    return -1;
  }
  names.clear();
  int error = 0;
  try {
    errno = 0;
    while (const dirent* entry = ::readdir(stream)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") {
        names.emplace_back(name);
      }
      errno = 0;
    }
    error = errno;
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  }
  ::closedir(stream);
  errno = error;
  return error == 0 ? 0 : -1;
}

}  // namespace reach
}  // namespace tandem
