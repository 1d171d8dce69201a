// runtime/semaphore.hpp — at most N coroutines of a loop at a time between acquire() and the
// permit's end.
//
// Permits go to those that wait in the order in which they came; one that comes while others wait
// queues up behind them.
// Thread rule: of the loop's thread.
// Cancel rule: acquire(stop) ends with Stopped as long as it waits. The semaphore outlives its
// permits and those that wait, which its end checks.
//
//   Semaphore downloads(4);
//   Semaphore::Permit permit = co_await downloads.acquire(stop);   // released where it dies
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "runtime/detail/wait_list.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

class Semaphore {
 public:
  class Awaiter;
  class Permit;

  explicit Semaphore(std::size_t permits) noexcept : permits_(permits), free_(permits) {}
  ~Semaphore() {
    TANDEM_CHECK(waiting_.empty(), "a semaphore died while a coroutine waits for it");
    TANDEM_CHECK_EQ(free_, permits_, "a semaphore died before its permits");
  }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  /// co_await gives a Permit.
  [[nodiscard]] Awaiter acquire(StopToken stop = {}) noexcept;
  /// nullopt: none is free, or others wait.
  [[nodiscard]] std::optional<Permit> try_acquire() noexcept;
  [[nodiscard]] std::size_t available() const noexcept { return free_; }

 private:
  bool take() noexcept {
    const bool got = free_ > 0 && waiting_.empty();
    free_ -= got ? 1 : 0;
    return got;
  }
  void release() noexcept {
    if (waiting_.take_first() == nullptr) {  // else the permit is that one's now
      ++free_;
    }
  }

  std::size_t permits_;
  std::size_t free_;
  detail::WaitList waiting_;
};

class [[nodiscard("a permit is released where it dies")]] Semaphore::Permit {
 public:
  Permit(Permit&& other) noexcept : semaphore_(std::exchange(other.semaphore_, nullptr)) {}
  Permit& operator=(Permit&& other) noexcept {
    if (this != &other) {
      release();
      semaphore_ = std::exchange(other.semaphore_, nullptr);
    }
    return *this;
  }
  ~Permit() { release(); }
  /// Before its end; harmless when it was released or moved from.
  void release() noexcept {
    if (Semaphore* semaphore = std::exchange(semaphore_, nullptr)) {
      semaphore->release();
    }
  }

 private:
  friend class Semaphore;
  friend class Awaiter;
  explicit Permit(Semaphore& semaphore) noexcept : semaphore_(&semaphore) {}
  Semaphore* semaphore_;
};

class Semaphore::Awaiter : detail::ListedWaiter {
 public:
  static constexpr const char* kAwaitName = "semaphore";
  Awaiter(Semaphore& semaphore, StopToken stop) noexcept
      : ListedWaiter(std::move(stop)), semaphore_(semaphore) {}

  bool await_ready() noexcept {
    if (stop_at_start()) {
      return true;
    }
    granted_ = semaphore_.take();
    return granted_ && EventLoop::current().may_continue_synchronously();
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    if (granted_) {
      go_on_later(coroutine);
    } else {
      enter(semaphore_.waiting_, coroutine);
    }
  }
  Permit await_resume() const {
    throw_if_stopped();
    return Permit(semaphore_);
  }

 private:
  Semaphore& semaphore_;
  bool granted_ = false;
};

inline Semaphore::Awaiter Semaphore::acquire(StopToken stop) noexcept {
  return {*this, std::move(stop)};
}
inline std::optional<Semaphore::Permit> Semaphore::try_acquire() noexcept {
  return take() ? std::optional(Permit(*this)) : std::nullopt;
}

}  // namespace tandem
