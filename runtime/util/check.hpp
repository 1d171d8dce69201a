// runtime/util/check.hpp — assertions for our own mistakes; on in release builds too.
// One line on stderr, the hook for reports (runtime/report.hpp), then abort.
// A wrong input of the user is never checked with these: it is an Error (util/error.hpp).
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace tandem::detail {

/// The hook that is told the line of a failed check before the process ends; null: there is none.
inline std::atomic<void (*)(const char* line) noexcept> check_hook{nullptr};

[[noreturn]] inline void say_and_abort(const char* line) noexcept {
  std::fprintf(stderr, "%s\n", line);
  if (auto* hook = check_hook.exchange(nullptr)) {  // a check that fails in it ends the process
    hook(line);
  }
  std::abort();
}

[[noreturn]] inline void check_failed(const char* expression, const char* file, int line,
                                      const char* why) noexcept {
  char text[1024];
  std::snprintf(text, sizeof text, "%s:%d: check failed: %s (%s)", file, line, expression, why);
  say_and_abort(text);
}

/// Does what check_failed() does, and also prints the name of the actor, task or scope that it is
/// about.
[[noreturn]] inline void check_failed_for(const char* expression, const char* file, int line,
                                          const char* why, const char* name) noexcept {
  char text[1024];
  std::snprintf(text, sizeof text, "%s:%d: check failed: %s (%s: %s)", file, line, expression, name,
                why);
  say_and_abort(text);
}

/// A compared value as text: a number, an enumerator's number, or a pointer.
struct ComparedValue {
  template <class T>
  explicit ComparedValue(const T& value) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      std::snprintf(text, sizeof(text), "%.17g", static_cast<double>(value));
    } else if constexpr (std::is_pointer_v<T>) {
      std::snprintf(text, sizeof(text), "%p", static_cast<const void*>(value));
    } else if constexpr (std::is_unsigned_v<T>) {
      std::snprintf(text, sizeof(text), "%llu", static_cast<unsigned long long>(value));
    } else {
      std::snprintf(text, sizeof(text), "%lld", static_cast<long long>(value));
    }
  }
  char text[32];
};

[[noreturn]] inline void comparison_failed(const char* expression, const ComparedValue& left,
                                           const ComparedValue& right, const char* file, int line,
                                           const char* why) noexcept {
  char text[1024];
  std::snprintf(text, sizeof text, "%s:%d: check failed: %s, with %s and %s (%s)", file, line,
                expression, left.text, right.text, why);
  say_and_abort(text);
}

}  // namespace tandem::detail

/// Ends the process when `condition` is false; `why` says which invariant that breaks.
#define TANDEM_CHECK(condition, why)                                         \
  do {                                                                       \
    if (!(condition)) [[unlikely]] {                                         \
      ::tandem::detail::check_failed(#condition, __FILE__, __LINE__, (why)); \
    }                                                                        \
  } while (false)

/// A TANDEM_CHECK about the actor, task, scope or loop that is called `name`, which is in the
/// message.
#define TANDEM_CHECK_FOR(name, condition, why)                                           \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      ::tandem::detail::check_failed_for(#condition, __FILE__, __LINE__, (why), (name)); \
    }                                                                                    \
  } while (false)

/// A TANDEM_CHECK for a comparison of numbers or pointers, whose values are in the message.
#define TANDEM_CHECK_EQ(left, right, why) TANDEM_DETAIL_COMPARE(left, ==, right, why)
#define TANDEM_CHECK_LT(left, right, why) TANDEM_DETAIL_COMPARE(left, <, right, why)
#define TANDEM_CHECK_LE(left, right, why) TANDEM_DETAIL_COMPARE(left, <=, right, why)

#define TANDEM_DETAIL_COMPARE(left, operation, right, why)                               \
  do {                                                                                   \
    const auto& left_value_ = (left);                                                    \
    const auto& right_value_ = (right);                                                  \
    if (!(left_value_ operation right_value_)) [[unlikely]] {                            \
      ::tandem::detail::comparison_failed(                                               \
          #left " " #operation " " #right, ::tandem::detail::ComparedValue(left_value_), \
          ::tandem::detail::ComparedValue(right_value_), __FILE__, __LINE__, (why));     \
    }                                                                                    \
  } while (false)
