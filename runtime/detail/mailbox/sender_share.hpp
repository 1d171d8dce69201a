// runtime/detail/mailbox/sender_share.hpp — limits how much of a mailbox one sender may fill: a
// counter to which its addresses and messages refer.
//
// A message holds one credit of its sender's share from acceptance until it is taken or returned,
// and a reference for as long as it exists, so that no credit is lost when the sender or the actor
// ends.
// Invariant: on the mailbox's loop, no message waits for a credit while one is free. The exception
// is the moment of a sender's give_back(); the sender looks at `waiting` afterwards: both sides
// write before they read, sequentially consistent.
// Thread rule: any thread; the waiting messages belong to the mailbox's loop. Internal.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/detail/linked_queue.hpp"

namespace tandem::detail {

struct Envelope;

class SenderShare {
 public:
  explicit SenderShare(std::uint32_t limit) noexcept : limit_(limit) {}
  SenderShare(const SenderShare&) = delete;
  SenderShare& operator=(const SenderShare&) = delete;

  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    // acq_rel: what others did with it is done before it goes.
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

  /// Takes a credit and returns true if fewer than `most` are taken.
  [[nodiscard]] bool try_take(std::uint64_t most) noexcept {
    std::uint64_t used = used_.load();
    while (used < most) {
      if (used_.compare_exchange_weak(used, used + 1)) {
        return true;
      }
    }
    return false;
  }
  void give_back() noexcept { used_.fetch_sub(1); }

  [[nodiscard]] std::uint64_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::uint64_t used() const noexcept { return used_.load(); }

  /// Messages that wait for a credit of this share; written on the mailbox's loop.
  std::atomic<std::uint32_t> waiting{0};

  // ---- of the mailbox's loop ----
  /// The messages that wait for a credit, in their order; while there are any, the share is in the
  /// wait queue's list.
  LinkedQueue<Envelope> envelopes;
  SenderShare* next = nullptr;
  SenderShare* previous = nullptr;
  /// Appends to the list of the share's accepted messages in the queue of a mailbox that drops the
  /// oldest.
  void add_queued(Envelope& envelope) noexcept;
  [[nodiscard]] Envelope* oldest_queued() const noexcept { return oldest_queued_; }
  /// Called when `envelope` has left the queue. Does nothing if it is not the oldest of the list:
  /// then it was never added.
  void remove_queued(const Envelope& envelope) noexcept;

 private:
  ~SenderShare() = default;

  Envelope* oldest_queued_ = nullptr;
  Envelope* newest_queued_ = nullptr;  // valid while the oldest is set
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> used_{0};
  std::atomic<std::uint32_t> references_{1};
};

}  // namespace tandem::detail
