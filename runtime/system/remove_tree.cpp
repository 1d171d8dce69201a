#include "runtime/system/remove_tree.hpp"

#include <cerrno>
#include <new>
#include <vector>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/system/owned_descriptor.hpp"
#include "runtime/system/reach.hpp"

namespace tandem {
namespace {

constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool on_one_disk(int one, int other) noexcept {
  struct stat a{};
  struct stat b{};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev;
}

/// The folder of that name in `parent`, unless it is a link or something is mounted there.
int open_folder(int parent, const char* name) noexcept {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(kFolder);
  how.resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH;
  const long opened = ::syscall(SYS_openat2, parent, name, &how, sizeof how);  // Linux 5.6
  if (opened >= 0 || (errno != ENOSYS && errno != EPERM && errno != EINVAL)) {
    return static_cast<int>(opened);
  }
  const int folder = ::openat(parent, name, kFolder);
  if (folder >= 0 && !on_one_disk(parent, folder)) {
    ::close(folder);
    errno = EXDEV;
    return -1;
  }
  return folder;
}

/// The first failure's errno; 0: it is gone.
int remove_at(int parent, const char* name) {
  if (::unlinkat(parent, name, 0) == 0 || errno == ENOENT) {
    return 0;
  }
  if (errno != EISDIR && errno != EPERM) {
    return errno;
  }
  const int not_a_file = errno;
  const OwnedDescriptor folder(open_folder(parent, name));
  if (folder.get() < 0) {
    return errno == ENOTDIR ? not_a_file : errno;
  }
  int first = 0;
  std::vector<std::string> names;
  const int listed = ::openat(folder.get(), ".", kFolder);
  if (listed < 0 || reach::list_open(listed, names) != 0) {
    first = errno;
  }
  for (const std::string& within : names) {
    const int error = remove_at(folder.get(), within.c_str());
    first = first == 0 ? error : first;
  }
  if (::unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT && first == 0) {
    first = errno;
  }
  return first;
}

}  // namespace

std::int64_t remove_tree(const std::string& path) noexcept {
  int error = 0;
  try {
    const std::size_t end = path.find_last_not_of('/');
    const std::string whole = path.substr(0, end == std::string::npos ? 0 : end + 1);
    const std::size_t slash = whole.rfind('/');
    const std::string parent = slash == std::string::npos ? "." : whole.substr(0, slash + 1);
    const std::string name = whole.substr(slash + 1);  // npos + 1 is 0
    if (name.empty() || name == "." || name == "..") {
      errno = EINVAL;
      return -1;
    }
    const OwnedDescriptor folder(reach::open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.get() < 0) {
      return errno == ENOENT ? 0 : -1;
    }
    error = remove_at(folder.get(), name.c_str());
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  }
  errno = error;
  return error == 0 ? 0 : -1;
}

}  // namespace tandem
