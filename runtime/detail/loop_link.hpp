// runtime/detail/loop_link.hpp — a way to a loop that may be gone: for answers that come back later
// than the asker lives, and for stops.
//
// Counted; the loop cuts it when it dies. Only answers between two loops and stops from other
// threads go through it, so a lock is good enough.
// Thread rule: any thread. Internal.
#pragma once

#include <atomic>
#include <mutex>
#include <utility>

#include "runtime/detail/op.hpp"

namespace tandem {

class EventLoop;

namespace detail {

class LoopLink {
 public:
  explicit LoopLink(EventLoop& loop) noexcept : loop_(&loop) {}

  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    // acq_rel: what the others did with the link is done before it goes.
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }
  /// Posts to the loop; false if it is gone.
  [[nodiscard]] bool post(Op& op) noexcept;
  /// The loop calls it when it dies.
  void cut() noexcept {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  ~LoopLink() = default;

  std::atomic<int> references_{1};
  std::mutex mutex_;
  EventLoop* loop_;
};

}  // namespace detail
}  // namespace tandem
