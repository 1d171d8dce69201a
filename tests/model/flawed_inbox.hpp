// tests/model/flawed_inbox.hpp — the inbox once more, with one mistake at a time, to see that the
// model checker finds it.
#pragma once

#include "runtime/detail/op.hpp"

namespace tandem::model {

enum class Flaw {
  kNone,
  kSleepsUnseen,      // sets the tag without looking whether something arrived
  kWakesByOldHead,    // decides by the head that it loaded first, not by the one it replaced
  kWakesIfEmpty,      // wakes when the inbox was empty, which a sleeping one is not
  kTakesInTwoSteps,   // load, then store: what arrives in between is lost
  kNewestFirst,       // does not turn the list around
  kTouchesAfterPush,  // writes into its node when the consumer may have it
  kNeverOwes,         // says of no sleep that a producer ended it
  kTagTwice,          // every push from an empty inbox believes it has to wake
};

template <class Atomics, class Node, Flaw kFlaw>
class FlawedInbox {
 public:
  bool push(Node& op) {
    Node* head = head_.load(std::memory_order_relaxed);
    const Node* first = head;
    do {
      op.next = head == asleep() ? nullptr : head;
    } while (!head_.compare_exchange_weak(head, &op, std::memory_order_release,
                                          std::memory_order_relaxed));
    if constexpr (kFlaw == Flaw::kTouchesAfterPush) {
      op.payload = 0;
    }
    if constexpr (kFlaw == Flaw::kWakesByOldHead) {
      return first == asleep();
    }
    if constexpr (kFlaw == Flaw::kWakesIfEmpty) {
      return head == nullptr;
    }
    if constexpr (kFlaw == Flaw::kTagTwice) {
      return head == asleep() || head == nullptr;
    }
    return head == asleep();
  }
  bool take_all(OpQueue<Node>& queue) {
    Node* head = head_.load(std::memory_order_relaxed);
    if (head == nullptr) {
      return false;
    }
    if constexpr (kFlaw == Flaw::kTakesInTwoSteps) {
      head = head_.load(std::memory_order_acquire);
      head_.store(nullptr, std::memory_order_release);
    } else {
      head = head_.exchange(nullptr, std::memory_order_acquire);
    }
    append(head, queue);
    return true;
  }
  bool try_sleep() {
    if constexpr (kFlaw == Flaw::kSleepsUnseen) {
      head_.store(asleep(), std::memory_order_relaxed);
      return true;
    }
    Node* expected = nullptr;
    return head_.compare_exchange_strong(expected, asleep(), std::memory_order_relaxed);
  }
  bool wake_up(OpQueue<Node>& queue) {
    Node* head = head_.exchange(nullptr, std::memory_order_acquire);
    if (head == asleep()) {
      return false;
    }
    append(head, queue);
    return kFlaw != Flaw::kNeverOwes;
  }

 private:
  Node* asleep() { return reinterpret_cast<Node*>(this); }
  static void append(Node* newest, OpQueue<Node>& queue) {
    Node* oldest = nullptr;
    while (newest != nullptr) {
      Node* next = newest->next;
      if constexpr (kFlaw == Flaw::kNewestFirst) {
        queue.push(*newest);
      } else {
        newest->next = oldest;
        oldest = newest;
      }
      newest = next;
    }
    while (oldest != nullptr) {
      Node* next = oldest->next;
      queue.push(*oldest);
      oldest = next;
    }
  }

  typename Atomics::template Atomic<Node*> head_{nullptr};
};

}  // namespace tandem::model
