// runtime/semaphore.hpp — lets at most N coroutines of a loop be between acquire() and the permit's
// end.
//
// A coroutine may take several permits at once; while it waits for them, those behind it wait, too,
// so that it is not starved.
// Permits go to the waiting coroutines in the order in which they came; a coroutine that comes
// while others wait queues up behind them.
// Thread rule: the loop's thread.
// Cancel rule: a stop ends a waiting acquire(stop) with Stopped. The semaphore must outlive its
// permits and those that wait, which its destructor checks.
//
//   Semaphore downloads(4);
//   Semaphore::Permit permit = co_await downloads.acquire(stop);   // released where it dies
//   Semaphore::Permit megabytes = co_await memory.acquire(64, stop);   // 64 at once
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
    TANDEM_CHECK_FOR(waiting_.waiting(), waiting_.empty(),
                     "a semaphore died while a coroutine waits for it");
    TANDEM_CHECK_EQ(free_, permits_, "a semaphore died before its permits");
  }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  /// co_await returns a Permit, which stands for `count` permits. Throws Error if the semaphore has
  /// fewer in all.
  [[nodiscard]] Awaiter acquire(StopToken stop = {}) noexcept;
  [[nodiscard]] Awaiter acquire(std::size_t count, StopToken stop = {}) noexcept;
  /// Returns nullopt if fewer are free, or if others wait.
  [[nodiscard]] std::optional<Permit> try_acquire(std::size_t count = 1);
  [[nodiscard]] std::size_t available() const noexcept { return free_; }

 private:
  bool take(std::size_t count) {
    if (count > permits_) [[unlikely]] {
      throw_too_many(count);
    }
    const bool got = free_ >= count && waiting_.empty();
    free_ -= got ? count : 0;
    return got;
  }
  void release(std::size_t count) noexcept {
    free_ += count;
    serve();
  }
  void serve() noexcept;
  [[noreturn]] void throw_too_many(std::size_t count) const;

  std::size_t permits_;
  std::size_t free_;
  detail::WaitList waiting_;
};

class [[nodiscard("a permit is released where it dies")]] Semaphore::Permit {
 public:
  Permit(Permit&& other) noexcept
      : semaphore_(std::exchange(other.semaphore_, nullptr)), count_(other.count_) {}
  Permit& operator=(Permit&& other) noexcept {
    if (this != &other) {
      release();
      semaphore_ = std::exchange(other.semaphore_, nullptr);
      count_ = other.count_;
    }
    return *this;
  }
  ~Permit() { release(); }
  /// Releases it before its end; does nothing if it was released or moved from.
  void release() noexcept {
    if (Semaphore* semaphore = std::exchange(semaphore_, nullptr)) {
      semaphore->release(count_);
    }
  }

 private:
  friend class Semaphore;
  friend class Awaiter;
  Permit(Semaphore& semaphore, std::size_t count) noexcept
      : semaphore_(&semaphore), count_(count) {}
  Semaphore* semaphore_;
  std::size_t count_;
};

class Semaphore::Awaiter : detail::ListedWaiter {
 public:
  static constexpr const char* kAwaitName = "semaphore";
  Awaiter(Semaphore& semaphore, std::size_t count, StopToken stop) noexcept
      : ListedWaiter(std::move(stop)), semaphore_(semaphore), count_(count) {}

  bool await_ready() {
    if (stop_at_start()) {
      return true;
    }
    granted_ = semaphore_.take(count_);
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
    if (stopped()) {
      semaphore_.serve();  // those behind it may want fewer
    }
    throw_if_stopped();
    return Permit(semaphore_, count_);
  }

 private:
  friend class Semaphore;
  Semaphore& semaphore_;
  std::size_t count_;
  bool granted_ = false;
};

inline Semaphore::Awaiter Semaphore::acquire(StopToken stop) noexcept {
  return {*this, 1, std::move(stop)};
}
inline Semaphore::Awaiter Semaphore::acquire(std::size_t count, StopToken stop) noexcept {
  return {*this, count, std::move(stop)};
}
inline std::optional<Semaphore::Permit> Semaphore::try_acquire(std::size_t count) {
  return take(count) ? std::optional(Permit(*this, count)) : std::nullopt;
}
// Gives permits to the waiting coroutines in their order, as far as the free permits go.
inline void Semaphore::serve() noexcept {
  for (auto* next = static_cast<Awaiter*>(waiting_.first());
       next != nullptr && next->count_ <= free_; next = static_cast<Awaiter*>(waiting_.first())) {
    free_ -= next->count_;
    (void)waiting_.take_first();
  }
}

}  // namespace tandem
