// runtime/detail/loop_link.hpp — a counted reference to a loop that may have been destroyed: for
// answers that arrive after the asker has ended, and for stops.
//
// The loop clears it when it is destroyed. Only answers between two loops and stops from other
// threads use it, so a lock is fast enough.
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
  /// Posts to the loop; returns false if the loop is gone.
  [[nodiscard]] bool post(Op& op) noexcept;
  /// The loop calls this when it is destroyed.
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
