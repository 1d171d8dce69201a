// runtime/detail/mailbox/mailbox_await.hpp — the awaiters of `co_await address.send(m)` and
// `co_await address.ask(r)`.
//
// Both hold the mailbox (counted) and live in the awaiting coroutine's frame; their rules are those
// of address.hpp.
// Invariants: whatever ends a wait (the mailbox, an answer, a deadline, a stop) posts the coroutine
// once; when it goes on, no other thread and no envelope refers to its frame.
// Internal.
#pragma once

#include <utility>

#include "runtime/deadline.hpp"
#include "runtime/detail/mailbox/ask_slot.hpp"
#include "runtime/detail/mailbox/destination.hpp"
#include "runtime/scope.hpp"

namespace tandem {

namespace detail {

template <class M>
class SendAwaiter {
 public:
  static constexpr const char* kAwaitName = kTypeName<M>;

  template <class Arg>
  SendAwaiter(const Destination& to, Arg&& message, StopToken stop)
      : to_(to), message_(std::forward<Arg>(message)), stop_(std::move(stop)) {}
  SendAwaiter(const SendAwaiter&) = delete;
  SendAwaiter& operator=(const SendAwaiter&) = delete;

  bool await_ready() {
    if (stop_.stop_requested()) {
      stopped_ = true;
      return true;
    }
    if (to_.mailbox() != nullptr) {
      admit_ = to_.mailbox()->admit(to_.share(), message_);
    }
    if (admit_ == Admit::kReserved) {
      to_.mailbox()->deliver(to_.make_envelope<M>(std::move(message_)));
    }
    if (admit_ == Admit::kReserved || admit_ == Admit::kMerged) {
      return EventLoop::current().may_continue_synchronously();
    }
    return admit_ == Admit::kRefused;
  }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    scope_ = scope_of(coroutine.promise());
    if (admit_ == Admit::kClosed) {
      return false;
    }
    resume_.set(coroutine);
    ticket_.loop = &EventLoop::current();
    if (admit_ == Admit::kWait && to_.mailbox()->is_handled_by(coroutine.promise())) {
      send_beyond_bound();
    }
    if (admit_ != Admit::kWait) {
      ticket_.loop->post(resume_);  // it has sent long enough without a pause: others go first
      return true;
    }
    envelope_ = &to_.make_envelope<M>(std::move(message_));
    ticket_.told = &told_;
    envelope_->ticket = &ticket_;
    stop_.link(callback_);
    to_.mailbox()->wait_queue().deliver(*envelope_);
    return true;
  }
  void await_resume() {
    callback_.unlink();
    const bool closed = admit_ == Admit::kClosed || ticket_.state == WaitTicket::State::kReturned;
    // Actors that send to each other end in any order when their scope is asked to stop.
    if (stopped_ || (closed && scope_ != nullptr && scope_->stop_requested())) {
      throw Stopped();
    }
    if (admit_ == Admit::kRefused) {
      to_.mailbox()->count_rejected();
      throw MailboxFull(kTypeName<M>, to_.name(), to_.mailbox()->depth());
    }
    if (closed) {
      throw ActorClosed(to_.name());
    }
  }

 private:
  struct Callback : StopCallback {
    explicit Callback(SendAwaiter& owner) noexcept
        : StopCallback(
              [](StopCallback& self) noexcept { static_cast<Callback&>(self).awaiter.withdraw(); }),
          awaiter(owner) {}
    SendAwaiter& awaiter;
  };
  // Posted when the envelope has left the wait queue.
  struct Told : Op {
    explicit Told(SendAwaiter& owner) noexcept
        : Op([](Op& op) noexcept { static_cast<Told&>(op).awaiter.go_on(); }), awaiter(owner) {}
    SendAwaiter& awaiter;
  };
  // Travels to the mailbox's loop, which alone may take the envelope out of the wait queue, and
  // back.
  struct Withdraw : Op {
    explicit Withdraw(SendAwaiter& owner) noexcept : awaiter(owner) {}
    static void there(Op& op) noexcept {
      auto& self = static_cast<Withdraw&>(op);
      SendAwaiter& awaiter = self.awaiter;
      if (awaiter.ticket_.state == WaitTicket::State::kWaiting) {
        awaiter.to_.mailbox()->wait_queue().withdraw(*awaiter.envelope_);
      }
      self.run = &Withdraw::back;
      awaiter.ticket_.loop->post_from_any_thread(self);
    }
    static void back(Op& op) noexcept {
      SendAwaiter& awaiter = static_cast<Withdraw&>(op).awaiter;
      awaiter.withdrawing_ = false;
      // If it was too late, the envelope had left the wait queue, and told_ has arrived before
      // this.
      awaiter.stopped_ = awaiter.ticket_.state == WaitTicket::State::kWithdrawn;
      awaiter.go_on();
    }
    SendAwaiter& awaiter;
  };

  // A handler that waited for room in its own mailbox would wait for ever, so it may send up to
  // twice the bound.
  void send_beyond_bound() {
    switch (to_.mailbox()->reserve(to_.share(), 2)) {
      case Reserved::kYes:
        admit_ = Admit::kReserved;
        to_.mailbox()->deliver(to_.make_envelope<M>(std::move(message_)));
        break;
      case Reserved::kFull:
        admit_ = Admit::kRefused;
        break;
      case Reserved::kClosed:
        admit_ = Admit::kClosed;
        break;
    }
  }
  void withdraw() noexcept {
    if (to_.mailbox()->call_if_near(ticket_.loop, [this] {
          if (ticket_.state == WaitTicket::State::kWaiting) {
            to_.mailbox()->wait_queue().withdraw(*envelope_);
            stopped_ = true;
            ticket_.loop->post(resume_);
          }
        })) {
      return;
    }
    withdrawing_ = true;
    withdraw_.run = &Withdraw::there;
    to_.mailbox()->loop()->post_from_any_thread(withdraw_);
  }
  // Resumes the coroutine, unless a withdrawal still refers to this frame.
  void go_on() noexcept {
    if (!withdrawing_) {
      ResumeOp::resume(resume_);
    }
  }

  Destination to_;
  M message_;
  StopToken stop_;
  Scope* scope_ = nullptr;  // the sender's, once it has waited or found the mailbox closed
  Admit admit_ = Admit::kClosed;
  bool stopped_ = false;
  bool withdrawing_ = false;
  WaitTicket ticket_;
  Envelope* envelope_ = nullptr;
  ResumeOp resume_;
  Told told_{*this};
  Withdraw withdraw_{*this};
  Callback callback_{*this};
};

template <Request R>
class AskAwaiter : private AskSlot<typename R::Reply> {
  using Slot = AskSlot<typename R::Reply>;
  using End = AskSlotBase::End;

 public:
  using Reply = typename R::Reply;
  static constexpr const char* kAwaitName = kTypeName<R>;

  AskAwaiter(const Destination& to, R request, TimePoint deadline, StopToken stop)
      : to_(to), request_(std::move(request)), deadline_(deadline), stop_(std::move(stop)) {}
  AskAwaiter(const AskAwaiter&) = delete;
  AskAwaiter& operator=(const AskAwaiter&) = delete;

  bool await_ready() noexcept {
    if (stop_.stop_requested()) {
      this->end = End::kStopped;
    }
    return this->end != End::kNone || to_.mailbox() == nullptr;
  }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    Mailbox& mailbox = *to_.mailbox();
    if (deadline_ == TimePoint::max() && !stop_.can_stop() &&
        mailbox.is_handled_by(coroutine.promise())) {
      asks_itself_ = true;
      return false;
    }
    admit_ = mailbox.admit(to_.share(), request_);
    if (admit_ == Admit::kClosed || admit_ == Admit::kRefused) {
      return false;
    }
    Slot::begin(coroutine);
    RequestEnvelope<R>& envelope = to_.make_envelope<R>(std::move(request_));
    envelope.set_asker(*this->loop, this->key, !mailbox.is_on_this_thread());
    if (deadline_ != TimePoint::max()) {
      Slot::limit(deadline_);
    }
    Slot::stop_with(stop_);
    // The answer may be on its way before this returns, but it is posted, not resumed, so nothing
    // runs under us.
    if (admit_ == Admit::kReserved) {
      mailbox.deliver(envelope);
      return true;
    }
    if (mailbox.loop() == this->loop) {
      envelope_ = &envelope;
      envelope.ticket = &ticket_;
      this->leave_wait_queue = [](AskSlotBase& slot) noexcept {
        auto& self = static_cast<AskAwaiter&>(slot);
        if (self.ticket_.state == WaitTicket::State::kWaiting) {
          self.to_.mailbox()->wait_queue().withdraw(*self.envelope_);
        }
      };
    }
    mailbox.wait_queue().deliver(envelope);
    return true;
  }
  Reply await_resume() {
    switch (this->end) {
      case End::kAnswered:
        return this->outcome.take();
      case End::kDeadline:
        throw DeadlineExceeded(kTypeName<R>, to_.name());
      case End::kStopped:
        throw Stopped();
      case End::kNone:
        break;
    }
    if (asks_itself_) {
      throw failure(ExitCode::kFailure, "actor",
                    "{} of {} is asked by its own handler, which would wait for itself for ever; "
                    "call the function, or ask with a deadline",
                    kTypeName<R>, to_.name());
    }
    if (admit_ == Admit::kRefused) {
      to_.mailbox()->count_rejected();
      throw MailboxFull(kTypeName<R>, to_.name(), to_.mailbox()->depth());
    }
    throw ActorClosed(to_.name());
  }

 private:
  Destination to_;
  R request_;
  TimePoint deadline_;
  StopToken stop_;
  Admit admit_ = Admit::kClosed;
  bool asks_itself_ = false;
  WaitTicket ticket_;
  Envelope* envelope_ = nullptr;  // while it waits in the wait queue on this loop
};

}  // namespace detail
}  // namespace tandem
