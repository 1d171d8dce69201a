// runtime/detail/mpsc_inbox.hpp — many producers push intrusive nodes, one consumer takes them all,
// in the order of arrival.
//
// A push is one compare-and-swap on the head. The head may also hold a tag, which says that the
// consumer sleeps: the one producer that replaces the tag has to wake it, so there is exactly one
// wake per sleep (the idea is CAF's lifo_inbox).
// Thread rule: push() from any thread; everything else from the consumer's thread alone.
// Invariant: a node that was pushed is taken exactly once; the order of one producer's nodes is
// kept.
// A consumer that only polls (seems_empty()) is not asleep: pushing to it costs no wake.
// Explored by tests/model/, together with sleep_until_woken() and PendingWakeups.
#pragma once

#include <cstdint>

#include "runtime/detail/op.hpp"
#include "runtime/util/atomics.hpp"

namespace tandem {

template <class Atomics, class Node = Op>
class BasicMpscInbox {
 public:
  BasicMpscInbox() noexcept = default;
  BasicMpscInbox(const BasicMpscInbox&) = delete;
  BasicMpscInbox& operator=(const BasicMpscInbox&) = delete;

  /// Returns true if the consumer sleeps; then this caller alone has to wake it.
  [[nodiscard]] bool push(Node& op) noexcept {
    Node* head = head_.load(std::memory_order_relaxed);
    do {
      op.next = head == asleep() ? nullptr : head;
      // release: what the producer wrote into the node is seen by the consumer that takes it.
    } while (!head_.compare_exchange_weak(head, &op, std::memory_order_release,
                                          std::memory_order_relaxed));
    return head == asleep();
  }

  /// Appends everything that arrived to `queue`, oldest first; returns true if there was anything.
  bool take_all(OpQueue<Node>& queue) noexcept {
    if (head_.load(std::memory_order_relaxed) == nullptr) {
      return false;
    }
    return append_in_order(head_.exchange(nullptr, std::memory_order_acquire), queue);
  }

  /// Returns true if the consumer is asleep from now on (the next push returns true), and false if
  /// something has arrived, which is to be taken first.
  [[nodiscard]] bool try_sleep() noexcept {
    Node* expected = nullptr;
    return head_.compare_exchange_strong(expected, asleep(), std::memory_order_relaxed);
  }

  /// Ends a sleep. Returns true if a producer took the tag, and so owes (or gave) a wake.
  bool wake_up(OpQueue<Node>& queue) noexcept {
    Node* head = head_.exchange(nullptr, std::memory_order_acquire);
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
  Node* asleep() const noexcept {
    return reinterpret_cast<Node*>(const_cast<BasicMpscInbox*>(this));
  }

  static bool append_in_order(Node* newest, OpQueue<Node>& queue) noexcept {
    Node* oldest = nullptr;
    while (newest != nullptr) {
      Node* next = newest->next;
      newest->next = oldest;
      oldest = newest;
      newest = next;
    }
    const bool any = oldest != nullptr;
    while (oldest != nullptr) {
      Node* next = oldest->next;
      queue.push(*oldest);
      oldest = next;
    }
    return any;
  }

  alignas(64) typename Atomics::template Atomic<Node*> head_{nullptr};
};

using MpscInbox = BasicMpscInbox<StdAtomics>;

/// Sleeps in `reactor` until the next push; true if a producer ended the sleep, and so owes (or
/// gave) a wake. Waking is reactor.stop(), which lasts until the next restart(): restart() comes
/// before the tag is set, so that a wake for this sleep comes after it and is not forgotten. A wake
/// for an earlier sleep that arrives late only ends this one early.
template <class Inbox, class Node, class Reactor>
[[nodiscard]] bool sleep_until_woken(Inbox& inbox, OpQueue<Node>& queue, Reactor& reactor) {
  reactor.restart();
  if (!inbox.try_sleep()) {
    return false;
  }
  reactor.run_one();
  return inbox.wake_up(queue);
}

/// Sleeps on `wakes` until the next push, or until `until` at the latest; true if a wake ended it.
/// Each push that ends a sleep wakes once. If a push comes just as the time is over, its wake is
/// taken here; otherwise it would end the next sleep.
template <class Inbox, class Node, class Wakes, class Time>
bool sleep_until_woken(Inbox& inbox, OpQueue<Node>& queue, Wakes& wakes, Time until) {
  if (!inbox.try_sleep()) {
    return false;
  }
  const bool woken = wakes.wait_until(until);
  if (inbox.wake_up(queue) && !woken) {
    wakes.wait();
  }
  return woken;
}

/// Keeps a sleeper alive until all threads that ended one of its sleeps have stopped touching it.
template <class Atomics>
class BasicPendingWakeups {
 public:
  void owe() noexcept { ++pending_; }
  /// The last access of a waking thread to the sleeper.
  void paid() noexcept {
    // release: the sleeper goes on to its end only after this thread has stopped touching it.
    paid_.fetch_add(1, std::memory_order_release);
  }
  [[nodiscard]] bool settled() const noexcept {
    return paid_.load(std::memory_order_acquire) == pending_;
  }

 private:
  std::uint64_t pending_ = 0;  // written by the sleeper alone
  typename Atomics::template Atomic<std::uint64_t> paid_{0};
};

using PendingWakeups = BasicPendingWakeups<StdAtomics>;

}  // namespace tandem
