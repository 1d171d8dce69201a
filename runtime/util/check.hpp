// runtime/util/check.hpp — assertions for our own mistakes; on in release builds too.
// A wrong input of the user is never checked with these: it is an Error (util/error.hpp).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tandem::detail {
[[noreturn]] inline void check_failed(const char* expression, const char* file, int line,
                                      const char* why) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, expression, why);
  std::abort();
}
}  // namespace tandem::detail

/// Ends the process when `condition` is false; `why` says which invariant that breaks.
#define TANDEM_CHECK(condition, why)                                         \
  do {                                                                       \
    if (!(condition)) [[unlikely]] {                                         \
      ::tandem::detail::check_failed(#condition, __FILE__, __LINE__, (why)); \
    }                                                                        \
  } while (false)
