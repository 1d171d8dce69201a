// runtime/util/atomics.hpp — the atomics that the runtime's lock-free parts are written on, as a
// policy.
//
// StdAtomics, the default everywhere, is std::atomic and a futex, at no cost. The tests put another
// policy in its place whose every operation is a step of a model checker (tests/model/), so that
// what is explored is the code that runs.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tandem {

struct StdAtomics {
  template <class T>
  using Atomic = std::atomic<T>;

  // A futex by hand: the waits of libstdc++ 12's std::atomic go through a shared table of proxies.
  /// Sleeps while `word` is `seen`; may return without a reason.
  static void wait(Atomic<int>& word, int seen) noexcept {
    syscall(SYS_futex, address(word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
  /// Does what wait() does, until `until_ns` (steady_clock) at the latest; returns false if that
  /// time has come.
  static bool wait_until(Atomic<int>& word, int seen, std::int64_t until_ns) noexcept {
    constexpr std::int64_t kSecond = 1'000'000'000;
    const timespec until = {.tv_sec = until_ns / kSecond, .tv_nsec = until_ns % kSecond};
    return syscall(SYS_futex, address(word), FUTEX_WAIT_BITSET_PRIVATE, seen, &until, nullptr,
                   FUTEX_BITSET_MATCH_ANY) == 0 ||
           errno != ETIMEDOUT;
  }
  static void wake_one(Atomic<int>& word) noexcept {
    syscall(SYS_futex, address(word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  static_assert(sizeof(std::atomic<int>) == sizeof(int));
  static int* address(Atomic<int>& word) noexcept { return reinterpret_cast<int*>(&word); }
};

}  // namespace tandem
