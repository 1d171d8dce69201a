// runtime/util/build.hpp — what this build is: sanitizers and debug checks, as constants instead of
// #ifdefs in callers.
#pragma once

#include "runtime/util/check.hpp"

// A compiler that destroys temporaries of co_await twice; cmake/CoroutineCheck.cmake finds others.
#if defined(__clang__) ? __clang_major__ < 19 : __GNUC__ < 13
#error "Tandem needs clang 19 or later, or g++ 14: clang++-19"
#endif

#if !defined(__cpp_exceptions) || !defined(__cpp_rtti)
#error "Tandem needs exceptions and RTTI: compile without -fno-exceptions and -fno-rtti"
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TANDEM_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define TANDEM_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(TANDEM_ASAN)
#define TANDEM_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__) && !defined(TANDEM_TSAN)
#define TANDEM_TSAN 1
#endif

namespace tandem {

#ifdef TANDEM_ASAN
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#ifdef TANDEM_TSAN
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#ifdef __clang__
inline constexpr bool kGnuCompiler = false;
#else
inline constexpr bool kGnuCompiler = true;
#endif
#ifdef NDEBUG
inline constexpr bool kDebugChecks = kAddressSanitizer || kThreadSanitizer;
#else
inline constexpr bool kDebugChecks = true;
#endif

}  // namespace tandem

/// Declares a thread-local variable for a hot path: the library's code reaches it as the program's
/// own code does, by one load and without a call. (A library that is loaded later has room for a
/// few of these words.)
#define TANDEM_NEAR_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) constinit thread_local

/// A check that costs too much for the hot paths of a release build: on in debug and sanitizer
/// builds only.
#define TANDEM_DCHECK(condition, why)       \
  do {                                      \
    if constexpr (::tandem::kDebugChecks) { \
      TANDEM_CHECK(condition, why);         \
    }                                       \
  } while (false)
