// runtime/detail/mailbox/wait_queue.hpp — the waiters for room in a full mailbox: envelopes of
// suspended senders, and sleeping threads.
//
// An envelope waits for a credit of its sender's share first, in the share's own list, then for one
// of the mailbox; a credit that comes free passes straight to the first envelope. To enter and to
// leave takes constant time, however many wait, and for however many shares. A thread that runs no
// loop sleeps until half of the mailbox and of its share is free, so that it is woken once for many
// messages.
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
  /// The envelope, which has no credit, waits here; its ticket (if any) says when it was accepted
  /// or returned.
  void deliver(Envelope& envelope) noexcept;
  /// Blocks this thread, which runs no loop, until half the credits are free or the mailbox is
  /// closed; false: at once, because the actor was not started.
  bool sleep_until_room(SenderShare* share) noexcept;
  /// Gives back a credit of the share that its sender took for a message and did not use.
  void return_unused(SenderShare& share) noexcept;

  // ---- the mailbox's loop ----
  /// Takes an envelope out and frees it; its ticket says that it waits.
  void withdraw(Envelope& envelope) noexcept;
  /// No envelope waits for a credit of the mailbox, and no thread sleeps.
  [[nodiscard]] bool empty() const noexcept {
    return (static_cast<int>(envelopes_.empty()) & static_cast<int>(threads_.empty())) != 0;
  }
  /// The credits of a message that was taken or returned go to the first that wait for them, or
  /// back to the counters. `share`: null, or the message's; its reference ends here.
  void give_back(SenderShare* share) noexcept;
  /// The mailbox is closed: returns all envelopes and wakes all threads.
  void return_all() noexcept;

 private:
  struct ThreadWait;
  // A sender gave a credit of its share back while an envelope waits for one: the loop looks after
  // it.
  struct Wakeup : Op {
    explicit Wakeup(WaitQueue& owner) noexcept : Op(&WaitQueue::arrive_wakeup), queue(owner) {}
    WaitQueue& queue;
  };

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
  LinkedQueue<SenderShare> shares_;         // for whose credits envelopes wait
  std::atomic<bool> wakeup_posted_{false};  // and not run yet
  Wakeup wakeup_{*this};
  // Every thread that sleeps for room, arrived or not: the end of the actor wakes them though its
  // loop may run no more.
  std::mutex sleepers_mutex_;
  std::vector<ThreadWait*> sleepers_;
};

}  // namespace tandem::detail
