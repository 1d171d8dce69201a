// runtime/detail/mailbox/mailbox.hpp — an actor's bounded queue, to which its addresses refer and
// which outlives the actor.
//
// Bounded by credits: a sender takes one (CreditCounter) and the actor gives it back when it takes
// the message. From other threads a message travels as an Op through the loop's inbox; the queue
// itself is touched on the loop's thread only. A message without a credit takes another way:
// OverflowPolicy says what becomes of it, and WaitQueue holds those that wait.
// Invariants: a message that was accepted is handled once, or returned once (dropped; an ask then
// fails) when it gave way or the actor has ended. The closed bit sits in the counters of sent
// messages: once it is set, that number is final.
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
  /// A new one, or the one that a restarted child inherits (Inheritance).
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
  /// Asks for a place for `message`, which is moved from only when it was merged.
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
  /// Notes on the envelope what the mailbox wants to know when it is taken. Before it is delivered.
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
  /// A control message that no sender waits for: returned only when the actor has ended.
  void deliver_control(Envelope& envelope) noexcept;
  /// A credit, with `times` the usual bounds of mailbox and share (null: none).
  Reserved reserve(SenderShare* share, std::uint64_t times) noexcept;
  /// The messages that wait for credits. Any thread may add to it; see there.
  [[nodiscard]] WaitQueue& wait_queue() noexcept { return wait_queue_; }
  void count_rejected() noexcept { rejected_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] bool closed() const noexcept { return credits_.closed(); }
  [[nodiscard]] const char* name() const noexcept { return name_; }
  /// Messages accepted and not taken yet, control messages aside.
  [[nodiscard]] std::uint64_t depth() const noexcept { return credits_.out(); }
  [[nodiscard]] std::uint64_t credits() const noexcept { return credits_.credits(); }
  [[nodiscard]] MailboxMetrics metrics() const noexcept;
  /// Null until the actor was started.
  [[nodiscard]] EventLoop* loop() const noexcept { return loop_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_on_this_thread() const noexcept {
    return loop_.load(std::memory_order_relaxed) == EventLoop::current_or_null();
  }

  /// Calls fn() if the caller, on `loop`, may touch what belongs to the mailbox's loop: because it
  /// is that loop, or because the actor is not started yet, which then waits. Else false.
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
  /// `awaiting` runs under the handler of this actor: what it waits for here never comes.
  [[nodiscard]] bool is_handled_by(const TaskPromiseBase& awaiting) const noexcept {
    const EventLoop* const home = loop();
    return home != nullptr && home == EventLoop::current_or_null() && !waiting_ &&
           handler_waits_for(awaiting);
  }
  /// close(), from any thread: nothing is accepted from now on; the loop does the rest.
  void close_from_any_thread() noexcept;

  // ---- the actor, on its loop ----
  /// co_await in the actor's task: this is the one that handles.
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
  /// The actor dies because an exception passes, before it has ended: its task, `root` of `scope`,
  /// ends here if it waits for a message, and never goes on if it handles one.
  void give_up(Scope& scope, RootTask::promise_type& root) noexcept;
  /// `stop`: of the scope that the actor runs in.
  void open(EventLoop& loop, StopToken stop) noexcept;
  /// The next message, its credit given back; null if there is none.
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
  /// No further message is accepted, but for control messages; what was accepted is still handled.
  void close() noexcept;
  /// close(), and what was accepted is returned.
  void stop() noexcept;
  /// The actor is to pause: it takes no more, messages wait. For a child that may go on after a
  /// restart: open() again.
  void halt() noexcept;
  /// Nothing but control messages will ever come: closed, and everything accepted was taken.
  [[nodiscard]] bool drained() const noexcept {
    return stopped_ || (closed() && depth() == 0 && control_depth() == 0);
  }
  /// Refuses control messages, too, if it is drained; false: one is on its way after all.
  [[nodiscard]] bool seal() noexcept;
  /// The actor takes no more: comes back undelivered what is queued and fails the asks whose
  /// answers are pending.
  void end() noexcept;
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  /// The error that the asker gets where the handler threw `error`: a stop that ended the handler
  /// is the actor's, not the asker's.
  [[nodiscard]] std::exception_ptr error_for_asker(std::exception_ptr error) const noexcept;
  /// Likewise where it dropped its duty to answer.
  [[nodiscard]] std::exception_ptr dropped_reply_error(const char* request) const noexcept;
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  /// The list of those that are told when the actor has ended.
  [[nodiscard]] Watchers& watchers() noexcept { return watchers_; }
  /// The actor object is gone; frees this when nothing refers to it.
  void abandon() noexcept;
  /// Whether depth_max and waiting times are measured from now on.
  void measure(bool on) noexcept;

  // ---- policy and wait queue, on the loop ----
  /// The envelope has its credit: it goes into the queue.
  void accept(Envelope& envelope) noexcept {
    if (diverted_ || envelope.control) [[unlikely]] {
      divert(envelope);
      return;
    }
    queue_.push(envelope);
    wake_actor_here();
  }
  /// The actor will not get it: the envelope is returned, its credit given back.
  void return_accepted(Envelope& envelope, Undelivered why) noexcept;
  static const char* sender_name() noexcept {
    return t_running.name != nullptr ? t_running.name : "outside";
  }

  // ---- the loop's MessageTap ----
  /// A tap was installed or removed.
  void update_tap() noexcept { update_diverted(); }
  void deliver_tapped(Envelope& envelope) noexcept;
  void drop_tapped(Envelope& envelope) noexcept;
  /// The next open mailbox of the loop.
  [[nodiscard]] Mailbox* next_on_loop() const noexcept { return next_on_loop_; }
  /// The actor stops with what `other` is of.
  [[nodiscard]] bool stops_with(const StopToken& other) const noexcept {
    return stop_.stops_with(other);
  }

  void add_pending_reply(PendingReply& answer) noexcept;
  static void remove_pending_reply(PendingReply& answer) noexcept;

  /// co_await: until there is a message, or drained().
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
  // A control message is there, or something waits for a credit: one look for all of them.
  [[nodiscard]] bool waited_for() const noexcept {
    return (static_cast<int>(control_.empty()) & static_cast<int>(wait_queue_.empty())) == 0;
  }

  void wake_actor() noexcept {
    if (waiting_) {
      loop_.load(std::memory_order_relaxed)->check_here();
    }
    wake_actor_here();
  }
  // The same where the caller runs on the loop's thread for certain.
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
  bool diverted_ = false;  // an envelope does not simply go into the queue: see update_diverted()
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
