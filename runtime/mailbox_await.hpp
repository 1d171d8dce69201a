// runtime/mailbox_await.hpp — what `co_await address.send(m)` and `co_await address.ask(r)` wait in.
//
// Both hold the mailbox (counted) and live in the awaiting coroutine's frame; their rules are those of address.hpp.
// Invariant: whoever ends a wait (mailbox, answer, deadline, stop) posts the coroutine once. Internal.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "runtime/ask_slot.hpp"
#include "runtime/mailbox.hpp"
#include "runtime/message.hpp"
#include "runtime/trace.hpp"

namespace tandem {

/// No answer came before the deadline.
class DeadlineExceeded : public Error {
 public:
  DeadlineExceeded(const char* request, const char* actor);
};

namespace detail {

template <class M, class... Messages>
concept OneOf = (std::same_as<M, Messages> || ...);

template <class M>
struct MailFor {
  using Type = MessageMail<M>;
};
template <Request R>
struct MailFor<R> {
  using Type = AskMail<R>;
};
template <class M>
using MailOf = typename MailFor<M>::Type;

inline void trace_send(Mail& mail) noexcept {
  if (trace::enabled()) [[unlikely]] {
    mail.flow_id = trace::detail::next_id();
    trace::detail::record(trace::detail::Kind::kFlowStart, mail.type->name, trace::detail::now_ns(),
                          0, mail.flow_id);
  }
}

template <class M>
class SendAwaiter {
 public:
  static constexpr const char* kAwaitName = kTypeName<M>;

  template <class Arg>
  SendAwaiter(Mailbox* mailbox, Arg&& message, StopToken stop)
      : mailbox_(mailbox), message_(std::forward<Arg>(message)), stop_(stop), callback_(*this) {
    if (mailbox_ != nullptr) {
      mailbox_->add_reference();
    }
  }
  SendAwaiter(const SendAwaiter&) = delete;
  SendAwaiter& operator=(const SendAwaiter&) = delete;
  ~SendAwaiter() {
    if (mailbox_ != nullptr) {
      mailbox_->release();
    }
  }

  bool await_ready() {
    if (stop_.stop_requested()) {
      stopped_ = true;
      return true;
    }
    result_ = mailbox_ != nullptr ? mailbox_->reserve() : SendResult::kClosed;
    if (result_ == SendResult::kSent) {
      Mail* mail = make_mail();
      mailbox_->deliver(*mail);
      return EventLoop::current().may_continue_synchronously();
    }
    return result_ == SendResult::kClosed;
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    waiter_.resume.set(coroutine);
    waiter_.loop = &EventLoop::current();
    if (result_ == SendResult::kSent) {
      waiter_.loop->post(waiter_.resume);  // sent long enough without a pause: others first
      return;
    }
    mail_ = make_mail();
    mail_->waiter = &waiter_;
    if (mailbox_->is_on_this_thread()) {
      stop_.link(callback_);
    }
    mailbox_->deliver_in_line(*mail_);
  }
  void await_resume() {
    callback_.unlink();
    if (stopped_) {
      throw Stopped();
    }
    if (result_ == SendResult::kClosed || waiter_.bounced) {
      throw ActorClosed(mailbox_ != nullptr ? mailbox_->name() : "nobody");
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

  Mail* make_mail() {
    Mail* mail = make_in_pool<MailOf<M>>(std::move(message_));
    trace_send(*mail);
    return mail;
  }
  void withdraw() noexcept {
    if (mail_->waiter == nullptr) {
      return;  // accepted or bounced, and about to resume
    }
    mail_->waiter = nullptr;
    mail_->withdrawn = true;
    stopped_ = true;
    waiter_.loop->post(waiter_.resume);
  }

  Mailbox* mailbox_;
  M message_;
  StopToken stop_;
  SendResult result_ = SendResult::kFull;
  bool stopped_ = false;
  SendWaiter waiter_;
  Mail* mail_ = nullptr;
  Callback callback_;
};

template <Request R>
class AskAwaiter : private AskSlot<typename R::Reply> {
  using Slot = AskSlot<typename R::Reply>;
  using End = AskSlotBase::End;

 public:
  using Reply = typename R::Reply;
  static constexpr const char* kAwaitName = kTypeName<R>;

  AskAwaiter(Mailbox* mailbox, R request, TimePoint deadline, StopToken stop)
      : mailbox_(mailbox), request_(std::move(request)), deadline_(deadline), stop_(stop) {
    if (mailbox_ != nullptr) {
      mailbox_->add_reference();
    }
  }
  AskAwaiter(const AskAwaiter&) = delete;
  AskAwaiter& operator=(const AskAwaiter&) = delete;
  ~AskAwaiter() {
    if (mailbox_ != nullptr) {
      mailbox_->release();
    }
  }

  bool await_ready() noexcept {
    if (stop_.stop_requested()) {
      this->end = End::kStopped;
    }
    return this->end != End::kNone || mailbox_ == nullptr;
  }
  template <class Promise>
  bool await_suspend(std::coroutine_handle<Promise> coroutine) {
    const SendResult result = mailbox_->reserve();
    if (result == SendResult::kClosed) {
      return false;
    }
    Slot::begin(coroutine);
    AskMail<R>* mail = make_in_pool<AskMail<R>>(std::move(request_));
    mail->set_asker(*this->loop, this->key, !mailbox_->is_on_this_thread());
    trace_send(*mail);
    if (deadline_ != TimePoint::max()) {
      Slot::limit(deadline_);
    }
    Slot::stop_with(stop_);
    // The answer may be on its way before this returns, but it is posted, not resumed, so nothing runs under us.
    if (result == SendResult::kSent) {
      mailbox_->deliver(*mail);
    } else {
      mailbox_->deliver_in_line(*mail);
    }
    return true;
  }
  Reply await_resume() {
    switch (this->end) {
      case End::kAnswered:
        return this->outcome.take();
      case End::kDeadline:
        throw DeadlineExceeded(kTypeName<R>, mailbox_->name());
      case End::kStopped:
        throw Stopped();
      case End::kNone:
        break;
    }
    throw ActorClosed(mailbox_ != nullptr ? mailbox_->name() : "nobody");
  }

 private:
  Mailbox* mailbox_;
  R request_;
  TimePoint deadline_;
  StopToken stop_;
};

}  // namespace detail
}  // namespace tandem
