// runtime/util/wake_counter.hpp — one thread sleeps until others have called wake() once more; nothing is lost, whatever
// the order. A futex by hand: the waits of libstdc++ 12's std::atomic go through a shared table of proxies.
// Thread rule: wait() by one thread, wake() by any.
#pragma once

#include <atomic>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tandem {

class WakeCounter {
 public:
  /// Returns once for each wake().
  void wait() noexcept {
    while (count_.load(std::memory_order_acquire) == seen_) {
      syscall(SYS_futex, address(), FUTEX_WAIT_PRIVATE, seen_, nullptr, nullptr, 0);
    }
    ++seen_;
  }
  void wake() noexcept {
    count_.fetch_add(1, std::memory_order_release);
    syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  int* address() noexcept { return reinterpret_cast<int*>(&count_); }

  static_assert(sizeof(std::atomic<int>) == sizeof(int));
  std::atomic<int> count_{0};
  int seen_ = 0;
};

}  // namespace tandem
