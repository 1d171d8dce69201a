// tests/support/faults/file_size_limit.hpp — a disk that fills up, by the system's limit of a
// file's size: a write ends short there, and the next one with EFBIG.
//
// The limit holds for the whole process, so two of them cannot be alive at the same time.
#pragma once

#include <csignal>

#include <sys/resource.h>

namespace tandem::test {

/// While it lives, no file may grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  void (*handler_)(int);
};

}  // namespace tandem::test
