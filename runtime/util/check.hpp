// runtime/util/check.hpp — assertions for our own mistakes; on in release builds too.
// A wrong input of the user is never checked with these: it is an Error (util/error.hpp).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <type_traits>

namespace tandem::detail {

[[noreturn]] inline void check_failed(const char* expression, const char* file, int line,
                                      const char* why) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, expression, why);
  std::abort();
}

/// The same, with what it is about: an actor, a task, a scope.
[[noreturn]] inline void check_failed_for(const char* expression, const char* file, int line,
                                          const char* why, const char* name) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s: %s)\n", file, line, expression, name, why);
  std::abort();
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
  std::fprintf(stderr, "%s:%d: check failed: %s, with %s and %s (%s)\n", file, line, expression,
               left.text, right.text, why);
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

/// The same about the actor, task, scope or loop that is called `name`, which the message says.
#define TANDEM_CHECK_FOR(name, condition, why)                                           \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      ::tandem::detail::check_failed_for(#condition, __FILE__, __LINE__, (why), (name)); \
    }                                                                                    \
  } while (false)

/// The same for a comparison of numbers or pointers, whose values the message then has.
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
