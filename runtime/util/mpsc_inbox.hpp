// runtime/util/mpsc_inbox.hpp — many producers push intrusive nodes, one consumer takes them all, in the order of arrival.
//
// A push is one compare-and-swap on the head. The head also says that the consumer sleeps: the one producer that replaces
// that tag has to wake it, so there is exactly one wake per sleep (the idea is CAF's lifo_inbox).
// Thread rule: push() from any thread; everything else from the consumer's thread alone.
// Invariant: a node that was pushed is taken exactly once; the order of one producer's nodes is kept.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/op.hpp"

namespace tandem {

class MpscInbox {
 public:
  MpscInbox() noexcept = default;
  MpscInbox(const MpscInbox&) = delete;
  MpscInbox& operator=(const MpscInbox&) = delete;

  /// True: the consumer slept and this caller, nobody else, has to wake it.
  [[nodiscard]] bool push(Op& op) noexcept {
    Op* head = head_.load(std::memory_order_relaxed);
    do {
      op.next = head == asleep() ? nullptr : head;
      // release: what the producer wrote into the node is seen by the consumer that takes it.
    } while (!head_.compare_exchange_weak(head, &op, std::memory_order_release,
                                          std::memory_order_relaxed));
    return head == asleep();
  }

  /// Appends everything that arrived to `queue`, oldest first; true if there was anything.
  bool take_all(OpQueue<Op>& queue) noexcept {
    if (head_.load(std::memory_order_relaxed) == nullptr) {
      return false;
    }
    return append_in_order(head_.exchange(nullptr, std::memory_order_acquire), queue);
  }

  /// True: asleep from now on, the next push returns true. False: something arrived, take it first.
  [[nodiscard]] bool try_sleep() noexcept {
    Op* expected = nullptr;
    return head_.compare_exchange_strong(expected, asleep(), std::memory_order_relaxed);
  }

  /// Ends a sleep. True if a producer took the tag, and so owes (or gave) a wake.
  bool wake_up(OpQueue<Op>& queue) noexcept {
    Op* head = head_.exchange(nullptr, std::memory_order_acquire);
    if (head == asleep()) {
      return false;
    }
    append_in_order(head, queue);
    return true;
  }

  [[nodiscard]] bool seems_empty() const noexcept {
    return head_.load(std::memory_order_relaxed) == nullptr;
  }

 private:
  // An address that no node has.
  Op* asleep() const noexcept { return reinterpret_cast<Op*>(const_cast<MpscInbox*>(this)); }

  static bool append_in_order(Op* newest, OpQueue<Op>& queue) noexcept {
    Op* oldest = nullptr;
    while (newest != nullptr) {
      Op* next = newest->next;
      newest->next = oldest;
      oldest = newest;
      newest = next;
    }
    const bool any = oldest != nullptr;
    while (oldest != nullptr) {
      Op* next = oldest->next;
      queue.push(*oldest);
      oldest = next;
    }
    return any;
  }

  alignas(64) std::atomic<Op*> head_{nullptr};
};

}  // namespace tandem
