// runtime/detail/mailbox/wait_queue.hpp — the waiters for room in a full mailbox: envelopes of
// suspended senders, and sleeping threads.
//
// An envelope waits for a credit of its sender's share first, in the share's own list, then for one
// of the mailbox; a credit that comes free passes straight to the first envelope. Entering and
// leaving take constant time, however many envelopes wait for however many shares. A thread that
// runs no loop waits until half of the mailbox and of its share is free, so that it goes on once
// for many messages.
//
// Invariant: on the mailbox's loop no credit is free while an envelope waits for it.
// Thread rule: each function says whether any thread may call it or the mailbox's loop alone.
// Internal.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "runtime/detail/linked_queue.hpp"
#include "runtime/detail/mailbox/message.hpp"
#include "runtime/detail/mailbox/sender_share.hpp"
#include "runtime/util/credit_counter.hpp"

namespace tandem::detail {

class WaitQueue {
 public:
  WaitQueue(Mailbox& mailbox, CreditCounter& credits) noexcept
      : mailbox_(mailbox), credits_(credits) {}
  WaitQueue(const WaitQueue&) = delete;
  WaitQueue& operator=(const WaitQueue&) = delete;

  // ---- senders, any thread ----
  /// Takes an envelope that has no credit; its ticket (if any) tells when it was accepted or
  /// returned.
  void deliver(Envelope& envelope) noexcept;
  /// Blocks this thread, which runs no loop, until half the credits are free or the mailbox is
  /// closed. Returns false at once if the actor was not started.
  bool wait_for_room(SenderShare* share) noexcept;
  /// Gives back a credit of the share that its sender took for a message and did not use.
  void return_unused(SenderShare& share) noexcept;

  // ---- the mailbox's loop ----
  /// Takes an envelope out and frees it; its ticket must say that it waits.
  void withdraw(Envelope& envelope) noexcept;
  /// True if no envelope waits for a credit of the mailbox, and no thread sleeps.
  [[nodiscard]] bool empty() const noexcept {
    return (static_cast<int>(envelopes_.empty()) & static_cast<int>(threads_.empty())) != 0;
  }
  /// Passes the credits of a message that was taken or returned to the first waiters, or back to
  /// the counters. `share` is the message's share, or null; its reference ends here.
  void give_back(SenderShare* share) noexcept;
  /// Returns all envelopes and wakes all threads; called when the mailbox is closed.
  void return_all() noexcept;

 private:
  struct ThreadWait;
  // Posted to the loop when a sender gives back a credit of its share while an envelope waits for
  // one.
  struct Wakeup : Op {
    explicit Wakeup(WaitQueue& owner) noexcept : Op(&WaitQueue::arrive_wakeup), queue(owner) {}
    WaitQueue& queue;
  };

  [[nodiscard]] bool seems_half_empty(const SenderShare* share) const noexcept;
  void sleep_until_room(EventLoop& home, SenderShare* share) noexcept;
  static void arrive(Op& op) noexcept;
  static void arrive_wakeup(Op& op) noexcept;
  static void arrive_thread(Op& op) noexcept;
  void join(Envelope& envelope) noexcept;
  void join_with_share(Envelope& envelope) noexcept;
  void enter_share(Envelope& envelope) noexcept;
  void leave_share(Envelope& envelope) noexcept;
  void serve_share(SenderShare& share) noexcept;
  void serve_shares() noexcept;
  void release_share(SenderShare& share) noexcept;
  void wake_threads() noexcept;
  void wake_sleepers() noexcept;

  LinkedQueue<Envelope> envelopes_;  // that wait for a credit of the mailbox
  OpQueue<Op> threads_;              // of ThreadWait that has arrived
  Mailbox& mailbox_;
  CreditCounter& credits_;
  LinkedQueue<SenderShare> shares_;         // shares for whose credits envelopes wait
  std::atomic<bool> wakeup_posted_{false};  // and not run yet
  Wakeup wakeup_{*this};
  // Every thread that sleeps for room, arrived or not. The end of the actor wakes them even if its
  // loop does not run any more.
  std::mutex sleepers_mutex_;
  std::vector<ThreadWait*> sleepers_;
};

}  // namespace tandem::detail
