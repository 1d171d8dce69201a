// runtime/io/uring.hpp — one io_uring of the kernel: its set-up with what this kernel has, its
// eventfd, and both its queues.
//
// It knows nothing of files or coroutines. Only uring*.cpp include it, so that it is not compiled
// where liburing is missing.
// Thread rule: any thread may make it; from the first enter() on, one thread uses it until nothing
// is on its way.
#pragma once

#include <array>
#include <cstdint>

#include <liburing.h>

#include "runtime/util/check.hpp"

namespace tandem::detail {

/// Why a ring cannot be made, in words; `number` is positive.
[[nodiscard]] const char* uring_refusal(int number) noexcept;

class Uring {
 public:
  /// Makes a ring for `entries` operations at a time; error() tells whether that succeeded.
  explicit Uring(unsigned entries) noexcept;
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  [[nodiscard]] int error() const noexcept { return error_; }  // errno's, 0: none
  [[nodiscard]] bool is_deferred() const noexcept { return deferred_; }
  [[nodiscard]] unsigned entries() const noexcept { return entries_; }
  [[nodiscard]] bool can_do(unsigned opcode) const noexcept {
    return opcode < can_do_.size() && can_do_[opcode];
  }
  [[nodiscard]] int event_descriptor() const noexcept { return event_; }

  /// Called by the thread that submits from now on; returns false if the ring is bound to another
  /// thread.
  [[nodiscard]] bool belongs_here() noexcept;

  /// Returns the next free entry; null if there is none: enter() makes room.
  [[nodiscard]] io_uring_sqe* next_entry() noexcept { return io_uring_get_sqe(&ring_); }
  /// Hands the prepared entries over; returns false if the kernel did not take all of them: try
  /// again later.
  [[nodiscard]] bool enter() noexcept;
  /// Calls take(user data, result) for every completion there is, and returns their number. Costs
  /// one look at memory if there is none.
  template <class Take>
  unsigned reap(Take take) noexcept {
    if ((__atomic_load_n(ring_.sq.kflags, __ATOMIC_RELAXED) & kWorkPending) != 0) {
      io_uring_get_events(&ring_);
    }
    unsigned count = 0;
    unsigned head = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      take(entry->user_data, entry->res);
      ++count;
    }
    io_uring_cq_advance(&ring_, count);
    return count;
  }
  /// Sets whether completions notify the eventfd. A reap() after switching it on sees all that came
  /// before.
  void notify_event(bool on) noexcept {
    // seq_cst: the flag is visible before the completions are looked at, so that none is missed.
    __atomic_exchange_n(ring_.cq.kflags,
                        on ? 0U : static_cast<unsigned>(IORING_CQ_EVENTFD_DISABLED),
                        __ATOMIC_SEQ_CST);
  }

 private:
  static constexpr unsigned kWorkPending = IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW;

  int set_up(unsigned entries) noexcept;
  void ask_what_it_can() noexcept;

  io_uring ring_{};
  int error_ = 0;
  int event_ = -1;
  bool made_ = false;
  bool deferred_ = false;
  std::uint64_t thread_ = 0;  // to which it belongs; 0: to none yet
  unsigned entries_ = 0;
  std::array<bool, 64> can_do_{};
};

}  // namespace tandem::detail
