// runtime/mailbox.hpp — the part of an actor that its addresses point to: a bounded queue that outlives the actor.
//
// Bounded by credits: a sender takes one (an atomic counter) and the actor gives it back when it takes the message. Who
// finds none may wait in line; the line is served before anybody else. From other threads a message travels as an Op
// through the loop's inbox; the queue itself is touched on the loop's thread only.
// Invariant: a message that was accepted is handled once, or bounced once (dropped; an ask then fails) when the actor has
// ended. The closed bit sits in the counter of sent messages: once it is set, that number is final. Internal.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "runtime/event_loop.hpp"
#include "runtime/message.hpp"
#include "runtime/root_task.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

enum class SendResult { kSent, kFull, kClosed };

/// The actor does not take messages any more; asks and sends that need one fail with this.
class ActorClosed : public Error {
 public:
  explicit ActorClosed(const char* actor);
};

namespace detail {

class Mailbox {
 public:
  Mailbox(const char* name, std::uint32_t credits) noexcept : name_(name), credits_(credits) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void add_reference() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept;

  // ---- senders, any thread -------------------------------------------------------------------------
  /// Takes a credit. kSent: deliver() has to follow.
  SendResult reserve() noexcept {
    std::uint64_t sent = sent_.load(std::memory_order_relaxed);
    for (;;) {
      if ((sent & kClosedBit) != 0) [[unlikely]] {
        return SendResult::kClosed;
      }
      // acquire: the slot that the actor freed is free. Signed: `sent` may be older than what is taken by now.
      const std::uint64_t taken = taken_.load(std::memory_order_acquire);
      if (static_cast<std::int64_t>(sent - taken) >= static_cast<std::int64_t>(credits_)) {
        return SendResult::kFull;
      }
      if (sent_.compare_exchange_weak(sent, sent + 1, std::memory_order_relaxed)) {
        return SendResult::kSent;
      }
    }
  }
  void deliver(Mail& mail) noexcept {
    EventLoop* loop = loop_.load(std::memory_order_acquire);
    if (loop == EventLoop::current_or_null() || loop == nullptr) [[likely]] {
      enqueue(mail);
    } else {
      mail.target = this;
      mail.sender = sender_name();
      mail.run = &Mailbox::arrive;
      loop->post_from_any_thread(mail);
    }
  }
  /// Without a credit: the mail waits in line, and its waiter (if any) learns when it was accepted or bounced.
  void deliver_in_line(Mail& mail) noexcept;
  [[nodiscard]] bool closed() const noexcept {
    return (sent_.load(std::memory_order_relaxed) & kClosedBit) != 0;
  }
  [[nodiscard]] const char* name() const noexcept { return name_; }
  /// Messages accepted and not taken yet.
  [[nodiscard]] std::uint64_t depth() const noexcept {
    return (sent_.load(std::memory_order_relaxed) & ~kClosedBit) -
           taken_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool is_on_this_thread() const noexcept {
    return loop_.load(std::memory_order_relaxed) == EventLoop::current_or_null();
  }

  // ---- the actor, on its loop ----------------------------------------------------------------------
  void open(EventLoop& loop) noexcept;
  /// The next message, its credit given back; null if there is none.
  Mail* take() noexcept;
  /// No further message is accepted; what was accepted is still handled.
  void close() noexcept;
  /// close(), and what was accepted is bounced.
  void stop() noexcept;
  /// Nothing will ever come: closed, and everything accepted was taken.
  [[nodiscard]] bool drained() const noexcept {
    return stopped_ || (closed() && depth() == 0 && line_.empty());
  }
  /// The actor takes no more: bounces what is queued and fails the asks whose answers are owed.
  void end() noexcept;
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  /// The actor object is gone; frees this when nobody refers to it.
  void abandon() noexcept;

  // ---- the loop's MailTap --------------------------------------------------------------------------
  /// A tap was installed or removed.
  void update_tap() noexcept;
  void deliver_tapped(Mail& mail) noexcept;
  void drop_tapped(Mail& mail) noexcept;
  /// The next open mailbox of the loop.
  [[nodiscard]] Mailbox* next_on_loop() const noexcept { return next_on_loop_; }

  void add_owed(OwedAnswer& answer) noexcept;
  static void remove_owed(OwedAnswer& answer) noexcept;

  /// co_await: until there is mail, or drained().
  class MailAwaiter {
   public:
    static constexpr const char* kAwaitName = "mail";
    explicit MailAwaiter(Mailbox& mailbox) noexcept : mailbox_(mailbox) {}
    bool await_ready() const noexcept { return !mailbox_.queue_.empty() || mailbox_.drained(); }
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
  static void arrive_in_line(Op& op) noexcept;
  static const char* sender_name() noexcept {
    return t_running.name != nullptr ? t_running.name : "outside";
  }
  void enqueue(Mail& mail) noexcept {
    if (diverted_) [[unlikely]] {
      divert(mail);
      return;
    }
    queue_.push(mail);
    wake_actor();
  }
  void divert(Mail& mail) noexcept;
  void leave_loop() noexcept;
  void join_line(Mail& mail) noexcept;
  void serve_line() noexcept;
  void bounce_accepted(Mail& mail) noexcept;
  void wake_actor() noexcept {
    if (waiting_) {
      waiting_ = false;
      loop_.load(std::memory_order_relaxed)->post(resume_);
    }
  }
  void count_taken() noexcept {
    // Only the loop's thread writes it; release: the sender that sees it may use the slot.
    taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  const char* name_;
  std::uint32_t credits_;
  std::atomic<EventLoop*> loop_{nullptr};
  alignas(64) std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint32_t> references_{1};  // the actor's own
  alignas(64) std::atomic<std::uint64_t> taken_{0};
  OpQueue<Op> queue_;  // of Mail
  OpQueue<Op> line_;   // of Mail that waits for a credit
  ResumeOp resume_;
  OwedAnswer* owed_ = nullptr;
  Mailbox* next_on_loop_ = nullptr;
  Mailbox** link_on_loop_ = nullptr;  // the pointer that points here; null: in no list
  bool diverted_ = false;             // ended or tapped: mail does not simply go into the queue
  bool waiting_ = false;
  bool stopped_ = false;
  bool ended_ = false;
  bool abandoned_ = false;
};

}  // namespace detail
}  // namespace tandem
