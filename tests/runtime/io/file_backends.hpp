// tests/runtime/io/file_backends.hpp — the two ways of file operations as parameters of tests:
// their words in a test's name. A parameter without words is printed as its bytes, and such a name
// fails the test run.
#pragma once

#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "runtime/io/file_io.hpp"

namespace tandem {

inline const char* name_of(FileIo::Backend backend) {
  switch (backend) {
    case FileIo::Backend::kUring:
      return "uring";
    case FileIo::Backend::kThreads:
      return "threads";
    case FileIo::Backend::kAuto:
      return "chosen";
  }
  return "unknown";
}
inline void PrintTo(FileIo::Backend backend, std::ostream* out) { *out << name_of(backend); }
inline std::string backend_of(const ::testing::TestParamInfo<FileIo::Backend>& which) {
  return name_of(which.param);
}

}  // namespace tandem
