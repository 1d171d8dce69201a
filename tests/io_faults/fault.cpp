// LD_PRELOAD object of io_faults: one call on a file of a folder fails, or ends the process.
//
//   TANDEM_FAULT=CALL:INDEX:ERRNO   the INDEX-th CALL (from 0) fails with ERRNO; ERRNO "kill": the
//                                   process is killed before it
//   TANDEM_FAULT_FOLDER=PATH        calls on paths under it count, and on files opened there
//   TANDEM_FAULT_COUNTS=FILE        how many calls there were, appended when the process ends
//
// CALL is open (for writing), write, fsync, rename, fallocate, ftruncate, mkdir or close.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

constexpr int kMostDescriptors = 4096;

struct Plan {
  char call[32] = "";
  long index = -1;
  int error = 0;  // 0: kill
  const char* folder = nullptr;
};

const Plan& plan() {
  static const Plan made = [] {
    Plan p;
    char error[16] = "";
    const char* text = std::getenv("TANDEM_FAULT");
    if (text != nullptr && std::sscanf(text, "%31[^:]:%ld:%15s", p.call, &p.index, error) == 3) {
      p.error = std::atoi(error);
    }
    p.folder = std::getenv("TANDEM_FAULT_FOLDER");
    return p;
  }();
  return made;
}

std::atomic<long> g_calls{0};
std::atomic<bool> g_ours[kMostDescriptors];

/// Whether this call is the one that fails; errno says how.
bool fails(const char* call) {
  if (std::strcmp(plan().call, call) != 0 || g_calls.fetch_add(1) != plan().index) {
    return false;
  }
  if (plan().error == 0) {
    ::kill(::getpid(), SIGKILL);
  }
  errno = plan().error;
  return true;
}

bool is_ours(const char* path) {
  return plan().folder != nullptr && path != nullptr &&
         std::strncmp(path, plan().folder, std::strlen(plan().folder)) == 0;
}

/// Whether a path from a folder's descriptor lies in the tested folder.
bool is_ours(int folder, const char* path) {
  if (folder == AT_FDCWD || path == nullptr || path[0] == '/') {
    return is_ours(path);
  }
  char link[64];
  char whole[8192];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  const ssize_t size = ::readlink(link, whole, 4096);
  if (size <= 0) {
    return false;
  }
  std::snprintf(whole + size, sizeof whole - static_cast<std::size_t>(size), "/%s", path);
  return is_ours(whole);
}

bool is_ours(int file) { return file >= 0 && file < kMostDescriptors && g_ours[file]; }

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int opened(int file, bool is_ours) {
  if (file >= 0 && file < kMostDescriptors) {
    g_ours[file] = is_ours;
  }
  return file;
}

/// At the end of the process: after main(), not after a kill.
struct Counts {
  ~Counts() {
    const char* file = std::getenv("TANDEM_FAULT_COUNTS");
    if (std::FILE* out = file != nullptr ? std::fopen(file, "a") : nullptr) {
      std::fprintf(out, "%ld\n", g_calls.load());
      std::fclose(out);
    }
  }
} g_counts;

using OpenAt = int(int, const char*, int, ...);

int open_next(const char* name, int folder, const char* path, int flags, mode_t mode) {
  const bool ours = is_ours(folder, path);
  if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0 && ours && fails("open")) {
    return -1;
  }
  return opened(next<OpenAt>(name)(folder, path, flags, mode), ours);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_next("openat", AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_next("openat64", AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_next("openat", folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open_next("openat64", folder, path, flags, mode);
}

int mkostemp64(char* path, int flags) {
  static auto* const real = next<int(char*, int)>("mkostemp64");
  return is_ours(path) && fails("open") ? -1 : opened(real(path, flags), is_ours(path));
}

int mkostemp(char* path, int flags) {
  static auto* const real = next<int(char*, int)>("mkostemp");
  return is_ours(path) && fails("open") ? -1 : opened(real(path, flags), is_ours(path));
}

ssize_t write(int file, const void* bytes, size_t size) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  return is_ours(file) && fails("write") ? -1 : real(file, bytes, size);
}

ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return is_ours(file) && fails("write") ? -1 : real(file, bytes, size, offset);
}

ssize_t pwrite64(int file, const void* bytes, size_t size, off64_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  return is_ours(file) && fails("write") ? -1 : real(file, bytes, size, offset);
}

int fsync(int file) {
  static auto* const real = next<int(int)>("fsync");
  return is_ours(file) && fails("fsync") ? -1 : real(file);
}

int rename(const char* from, const char* to) {
  static auto* const real = next<int(const char*, const char*)>("rename");
  return is_ours(to) && fails("rename") ? -1 : real(from, to);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  static auto* const real = next<int(int, const char*, int, const char*)>("renameat");
  return is_ours(to_folder, to) && fails("rename") ? -1 : real(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  static auto* const real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return is_ours(to_folder, to) && fails("rename") ? -1
                                                   : real(from_folder, from, to_folder, to, flags);
}

int fallocate(int file, int mode, off_t offset, off_t size) {
  static auto* const real = next<int(int, int, off_t, off_t)>("fallocate");
  return is_ours(file) && fails("fallocate") ? -1 : real(file, mode, offset, size);
}

int fallocate64(int file, int mode, off64_t offset, off64_t size) {
  static auto* const real = next<int(int, int, off64_t, off64_t)>("fallocate64");
  return is_ours(file) && fails("fallocate") ? -1 : real(file, mode, offset, size);
}

int ftruncate(int file, off_t size) {
  static auto* const real = next<int(int, off_t)>("ftruncate");
  return is_ours(file) && fails("ftruncate") ? -1 : real(file, size);
}

int ftruncate64(int file, off64_t size) {
  static auto* const real = next<int(int, off64_t)>("ftruncate64");
  return is_ours(file) && fails("ftruncate") ? -1 : real(file, size);
}

int mkdir(const char* path, mode_t mode) {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  return is_ours(path) && fails("mkdir") ? -1 : real(path, mode);
}

int mkdirat(int folder, const char* path, mode_t mode) {
  static auto* const real = next<int(int, const char*, mode_t)>("mkdirat");
  return is_ours(folder, path) && fails("mkdir") ? -1 : real(folder, path, mode);
}

int close(int file) {
  static auto* const real = next<int(int)>("close");
  const bool counts = is_ours(file);
  if (counts) {
    g_ours[file] = false;
  }
  const int result = real(file);  // closed in any case, as Linux does
  return counts && fails("close") ? -1 : result;
}

}  // extern "C"
