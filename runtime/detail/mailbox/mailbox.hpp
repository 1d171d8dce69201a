// runtime/detail/mailbox/mailbox.hpp — an actor's bounded queue, to which its addresses refer and
// which outlives the actor.
//
// Bounded by credits: a sender takes one (CreditCounter) and the actor gives it back when it takes
// the message. From other threads a message travels as an Op through the loop's inbox; the queue
// itself is touched on the loop's thread only. OverflowPolicy decides about a message that finds no
// credit, and WaitQueue holds the messages that wait for one.
// Invariants: an accepted message is handled once, or returned once (it is dropped, and an ask
// fails) because it gave way to a newer one or the actor has ended. The closed bit is part of the
// counters of sent messages, so that their numbers are final once it is set.
// Internal.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "runtime/detail/mailbox/message.hpp"
#include "runtime/detail/mailbox/overflow_policy.hpp"
#include "runtime/detail/mailbox/sender_share.hpp"
#include "runtime/detail/mailbox/wait_queue.hpp"
#include "runtime/detail/mailbox/watchers.hpp"
#include "runtime/detail/root_task.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/mailbox_options.hpp"
#include "runtime/util/credit_counter.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

class Scope;

enum class SendResult { kSent, kFull, kClosed };

namespace detail {

class Mailbox {
 public:
  using Rules = OverflowPolicy::Rules;

  Mailbox(const char* name, const MailboxOptions& options, const Rules& rules);
  /// Makes a mailbox, or returns the one that a restarted child inherits (Inheritance).
  static Mailbox* make_or_inherit(const char* name, const MailboxOptions& options,
                                  const Rules& rules, bool& inherited);
  /// While it lives, the next actor made on this thread gets this mailbox (unless it is null)
  /// instead of a new one.
  class Inheritance {
   public:
    explicit Inheritance(Mailbox* mailbox) noexcept;
    ~Inheritance();
  };
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  // ---- senders, any thread ----
  /// Asks for room for `message`, which is moved from only if it was merged.
  template <class M>
  Admit admit(SenderShare* share, M& message) noexcept {
    if constexpr (ControlMessage<M>) {
      return reserve_control() ? Admit::kReserved : Admit::kClosed;
    } else {
      const Reserved result = share == nullptr ? credits_.reserve() : reserve(share, 1);
      if (result == Reserved::kYes) [[likely]] {
        return Admit::kReserved;
      }
      return result == Reserved::kClosed ? Admit::kClosed
                                         : policy_.admit(kMessageType<M>, &message, share);
    }
  }
  /// Notes the share and, while measuring, the time on the envelope, for when it is taken. Called
  /// before it is delivered.
  void stamp(Envelope& envelope, SenderShare* share) const noexcept {
    if (share != nullptr || measuring_.load(std::memory_order_relaxed)) [[unlikely]] {
      note(envelope, share);
    }
  }
  [[gnu::always_inline]] void deliver(Envelope& envelope) noexcept {
    EventLoop* const loop = loop_.load(std::memory_order_acquire);
    if (loop == EventLoop::current_or_null() && loop != nullptr) [[likely]] {
      accept(envelope);
    } else {
      deliver_elsewhere(envelope, loop);
    }
  }
  /// Delivers a control message for which no sender waits; it is returned only if the actor has
  /// ended.
  void deliver_control(Envelope& envelope) noexcept;
  /// Reserves a credit, with `times` the usual bounds of the mailbox and the share (null: no
  /// share).
  Reserved reserve(SenderShare* share, std::uint64_t times) noexcept;
  /// The messages that wait for credits. Any thread may add to it; see there.
  [[nodiscard]] WaitQueue& wait_queue() noexcept { return wait_queue_; }
  void count_rejected() noexcept { rejected_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] bool closed() const noexcept { return credits_.closed(); }
  [[nodiscard]] const char* name() const noexcept { return name_; }
  /// Returns the number of messages accepted and not taken yet, without control messages.
  [[nodiscard]] std::uint64_t depth() const noexcept { return credits_.out(); }
  [[nodiscard]] std::uint64_t credits() const noexcept { return credits_.credits(); }
  [[nodiscard]] MailboxMetrics metrics() const noexcept;
  /// The actor's loop; null until the actor was started.
  [[nodiscard]] EventLoop* loop() const noexcept { return loop_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_on_this_thread() const noexcept {
    return loop_.load(std::memory_order_relaxed) == EventLoop::current_or_null();
  }

  /// Calls fn() and returns true if the caller, which runs on `loop`, may touch what belongs to the
  /// mailbox's loop: it is the same loop, or the actor was not started yet (its start then waits
  /// for fn). Returns false otherwise.
  template <class Fn>
  bool call_if_near(const EventLoop* loop, Fn fn) noexcept {
    if (loop_.load(std::memory_order_acquire) == nullptr) {
      const std::lock_guard lock(before_start());
      if (loop_.load(std::memory_order_relaxed) == nullptr) {
        fn();
        return true;
      }
    }
    if (loop_.load(std::memory_order_acquire) != loop) {
      return false;
    }
    fn();
    return true;
  }
  /// True if `awaiting` runs under this actor's own handler: its wait for this actor would never
  /// end.
  [[nodiscard]] bool is_handled_by(const TaskPromiseBase& awaiting) const noexcept {
    const EventLoop* const home = loop();
    return home != nullptr && home == EventLoop::current_or_null() && !waiting_ && !ended_ &&
           handler_waits_for(awaiting);
  }
  /// Does close() from any thread: nothing is accepted from now on, and the loop does the rest.
  void close_from_any_thread() noexcept;

  // ---- the actor, on its loop ----
  /// Awaited in the actor's task, which is noted as the one that handles messages.
  struct NotePump {
    Mailbox& mailbox;
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> coroutine) const noexcept {
      mailbox.resume_.set(coroutine);
      return false;
    }
    void await_resume() const noexcept {}
  };
  /// Called if an exception destroys the actor before it has ended. The actor's task, `root` of
  /// `scope`, ends here if it waits for a message, and never goes on if it handles one.
  void give_up(Scope& scope, RootTask::promise_type& root) noexcept;
  /// Opens the mailbox on `loop`; `stop` is the token of the scope that the actor runs in.
  void open(EventLoop& loop, StopToken stop) noexcept;
  /// Takes the next message and gives its credit back; null if there is none.
  Envelope* take() noexcept {
    if (waited_for()) [[unlikely]] {
      return take_and_check();
    }
    Envelope* envelope = static_cast<Envelope*>(queue_.pop());
    if (envelope == nullptr) {
      return nullptr;
    }
    if (envelope->noted) [[unlikely]] {
      settle_taken(*envelope);
    } else {
      credits_.give_back();
    }
    return envelope;
  }
  /// Accepts no further messages except control messages; the accepted ones are still handled.
  void close() noexcept;
  /// Closes the mailbox; the accepted messages are returned when the actor ends.
  void stop() noexcept;
  /// Pauses the actor, which takes no more messages; they wait. For a child that may be restarted:
  /// open() then continues.
  void halt() noexcept;
  /// True if the actor was stopped, or if the mailbox is closed and everything accepted was taken,
  /// so that only control messages may still come.
  [[nodiscard]] bool drained() const noexcept {
    return stopped_ || (closed() && depth() == 0 && control_depth() == 0);
  }
  /// Refuses control messages, too, from now on; returns false if one is still on its way.
  [[nodiscard]] bool seal() noexcept;
  /// Ends the mailbox: returns the queued messages undelivered, and fails the asks whose answers
  /// are pending.
  void end() noexcept;
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  /// Returns the error for the asker of a handler that threw `error`: ActorClosed if a stop of the
  /// actor ended the handler, else `error` itself.
  [[nodiscard]] std::exception_ptr error_for_asker(std::exception_ptr error) const noexcept;
  /// Returns the error for the asker of a handler that dropped its ReplyTo.
  [[nodiscard]] std::exception_ptr dropped_reply_error(const char* request) const noexcept;
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  /// The watchers that are told when the actor has ended.
  [[nodiscard]] Watchers& watchers() noexcept { return watchers_; }
  /// Called when the actor object is gone; frees the mailbox once nothing refers to it.
  void abandon() noexcept;
  /// Sets whether depth_max and waiting times are measured from now on.
  void measure(bool on) noexcept;

  // ---- policy and wait queue, on the loop ----
  /// Puts an envelope that has its credit into the queue.
  void accept(Envelope& envelope) noexcept {
    if (diverted_ || envelope.control) [[unlikely]] {
      divert(envelope);
      return;
    }
    queue_.push(envelope);
    wake_actor_here();
  }
  /// Returns the envelope undelivered, and gives its credit back.
  void return_accepted(Envelope& envelope, Undelivered why) noexcept;
  static const char* sender_name() noexcept {
    return t_running.name != nullptr ? t_running.name : "outside";
  }

  // ---- the loop's MessageTap ----
  /// Called after a tap was installed or removed.
  void update_tap() noexcept { update_diverted(); }
  void deliver_tapped(Envelope& envelope) noexcept;
  void drop_tapped(Envelope& envelope) noexcept;
  /// The next open mailbox of the loop.
  [[nodiscard]] Mailbox* next_on_loop() const noexcept { return next_on_loop_; }
  /// True if a stop of the source of `other` stops the actor, too.
  [[nodiscard]] bool stops_with(const StopToken& other) const noexcept {
    return stop_.stops_with(other);
  }

  void add_pending_reply(PendingReply& answer) noexcept;
  static void remove_pending_reply(PendingReply& answer) noexcept;

  /// co_await lasts until there is a message, or until drained().
  class EnvelopeAwaiter {
   public:
    static constexpr const char* kAwaitName = "message";
    explicit EnvelopeAwaiter(Mailbox& mailbox) noexcept : mailbox_(mailbox) {}
    bool await_ready() const noexcept { return mailbox_.has_messages() || mailbox_.drained(); }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
      mailbox_.resume_.set(coroutine);
      mailbox_.waiting_ = true;
    }
    void await_resume() const noexcept {}

   private:
    Mailbox& mailbox_;
  };

 private:
  static constexpr std::uint64_t kClosedBit = std::uint64_t{1} << 63;
  ~Mailbox() = default;
  static void arrive(Op& op) noexcept;
  // One mutex for all mailboxes guards what other threads send to an actor that is not started.
  static std::recursive_mutex& before_start() noexcept;
  void deliver_elsewhere(Envelope& envelope, EventLoop* loop) noexcept;
  [[nodiscard]] bool handler_waits_for(const TaskPromiseBase& awaiting) const noexcept;
  void note(Envelope& envelope, SenderShare* share) const noexcept;
  bool reserve_control() noexcept;

  // Arrivals, on the loop.
  void divert(Envelope& envelope) noexcept;
  void place(Envelope& envelope) noexcept;
  void update_diverted() noexcept;
  void leave_loop() noexcept;

  // Departures, on the loop.
  Envelope* take_and_check() noexcept;
  void settle_taken(Envelope& envelope) noexcept;
  static void leave_share(const Envelope& envelope) noexcept;
  void free_if_unused() noexcept;
  // True if a control message is there or something waits for a credit; one branch tests all of
  // this.
  [[nodiscard]] bool waited_for() const noexcept {
    return (static_cast<int>(control_.empty()) & static_cast<int>(wait_queue_.empty())) == 0;
  }

  void wake_actor() noexcept {
    if (waiting_) {
      loop_.load(std::memory_order_relaxed)->check_here();
    }
    wake_actor_here();
  }
  // Like wake_actor(), for a caller that runs on the loop's thread for certain.
  void wake_actor_here() noexcept {
    if (waiting_) {
      waiting_ = false;
      if (planted(Bug::kLostWakeUp) && depth() > 1) {
        return;
      }
      loop_.load(std::memory_order_relaxed)->post_here(resume_);
    }
  }
  [[nodiscard]] bool has_messages() const noexcept { return !queue_.empty() || !control_.empty(); }
  [[nodiscard]] std::uint64_t control_depth() const noexcept {
    return (control_sent_.load(std::memory_order_relaxed) & ~kClosedBit) - control_taken_;
  }
  [[nodiscard]] std::int64_t now_ns() const noexcept;

  const char* name_;
  std::atomic<EventLoop*> loop_{nullptr};
  std::atomic<bool> measuring_;
  // Written by senders.
  alignas(64) std::atomic<std::uint32_t> references_{1};  // the actor's own
  std::atomic<std::uint64_t> control_sent_{0};
  std::atomic<std::uint64_t> rejected_{0};
  // Only the loop writes its second cache line and everything that follows. The members that a
  // message with a credit touches come first.
  [[no_unique_address]] CreditCounter credits_;
  OpQueue<Op> queue_;      // of Envelope
  OpQueue<Op> control_;    // of Envelope that overtakes the queue
  bool diverted_ = false;  // accepted envelopes go through divert(): see update_diverted()
  bool waiting_ = false;
  bool stopped_ = false;
  bool ended_ = false;
  bool abandoned_ = false;
  ResumeOp resume_;
  WaitQueue wait_queue_{*this, credits_};
  PendingReply* pending_ = nullptr;
  std::uint64_t control_taken_ = 0;
  Mailbox* next_on_loop_ = nullptr;
  Mailbox** link_on_loop_ = nullptr;  // the pointer that points here; null: in no list
  StopToken stop_;                    // of the scope that the actor runs in
  OverflowPolicy policy_;
  struct Counters {
    std::atomic<std::uint64_t> depth_max{0};
    std::atomic<std::uint64_t> waited{0};
    std::atomic<std::int64_t> waited_total_ns{0};
    std::atomic<std::int64_t> waited_max_ns{0};
  };
  Counters counters_;
  Watchers watchers_;
};

}  // namespace detail
}  // namespace tandem
