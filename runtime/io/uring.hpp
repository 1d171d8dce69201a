// runtime/io/uring.hpp — one ring of the kernel: set up with what this kernel has, its eventfd,
// both its queues.
//
// Knows nothing of files or coroutines. Not included where liburing is missing (only uring*.cpp
// do).
// Thread rule: made anywhere; from the first enter() on, of one thread, until nothing is on its
// way.
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
  /// A ring for this many operations at a time. error() says whether there is one.
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

  /// To be called by the thread that submits from now on; false: it belongs to another thread for
  /// good.
  [[nodiscard]] bool belongs_here() noexcept;

  /// Null: full; enter() makes room.
  [[nodiscard]] io_uring_sqe* next_entry() noexcept { return io_uring_get_sqe(&ring_); }
  /// Hands over what was prepared; false: the kernel did not take everything, try again later.
  [[nodiscard]] bool enter() noexcept;
  /// Calls take(user data, result) for every completion there is; how many there were. One look at
  /// memory when none.
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
  /// Whether completions ring the eventfd. A look after switching it on sees what came before.
  void notify_event(bool on) noexcept {
    // seq_cst: the flag is out before the completions are looked at, so that none falls between.
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
  std::uint64_t thread_ = 0;  // that it belongs to; 0: to none yet
  unsigned entries_ = 0;
  std::array<bool, 64> can_do_{};
};

}  // namespace tandem::detail
