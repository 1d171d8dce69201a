// runtime/address.hpp — how others reach an actor: copyable, typed, and safe to hold after the actor is gone.
//
// Only what the actor handles compiles. A mailbox is bounded: try_send says full, `co_await send` waits in line, `co_await
// ask` waits for its answer. After the actor's end every one of them says closed. An address narrows by itself to one with
// fewer messages. Messages of one sender arrive in the order of sending.
// Thread rule: copying and try_send() from any thread (the actor's loop must exist); send() and ask() in coroutines, also
// of other loops. Cancel rule: ask() with a deadline or StopToken ends at once, and a late answer is dropped; send() with
// a StopToken ends at once unless the actor lives on another loop: then it ends when the mail was accepted or bounced.
//
//   if (address.try_send(Tick(1)) == SendResult::kFull) ...;   co_await address.send(Tick(2));
//   int sum = co_await address.ask(Sum(), 100ms);
#pragma once

#include <type_traits>
#include <utility>

#include "runtime/mailbox_await.hpp"

namespace tandem {

template <class... Messages>
class Address {
 public:
  /// Of nobody: everything says closed.
  Address() noexcept = default;
  Address(const Address& other) noexcept : mailbox_(other.mailbox_) { hold(); }
  Address(Address&& other) noexcept : mailbox_(std::exchange(other.mailbox_, nullptr)) {}
  /// From an address that takes these messages, too.
  template <class... Others>
    requires(detail::OneOf<Messages, Others...> && ...)
  Address(const Address<Others...>& other) noexcept  // NOLINT: converts on purpose
      : mailbox_(other.mailbox_) {
    hold();
  }
  Address& operator=(Address other) noexcept {
    std::swap(mailbox_, other.mailbox_);
    return *this;
  }
  ~Address() {
    if (mailbox_ != nullptr) {
      mailbox_->release();
    }
  }

  /// Any thread; never waits. The message is moved from only if it was sent.
  template <class M>
    requires detail::OneOf<std::remove_cvref_t<M>, Messages...>
  SendResult try_send(M&& message) const {
    if constexpr (!std::is_nothrow_constructible_v<std::remove_cvref_t<M>, M&&>) {
      // A copy that throws must not do so between the credit and the delivery.
      return try_send(std::remove_cvref_t<M>(std::forward<M>(message)));
    }
    const SendResult result = mailbox_ != nullptr ? mailbox_->reserve() : SendResult::kClosed;
    if (result == SendResult::kSent) {
      using Mail = detail::MailOf<std::remove_cvref_t<M>>;
      Mail* mail = detail::make_in_pool<Mail>(std::forward<M>(message));
      detail::trace_send(*mail);
      mailbox_->deliver(*mail);
    }
    return result;
  }

  /// co_await: until the mailbox took the message. Throws ActorClosed, or Stopped.
  template <class M>
    requires detail::OneOf<std::remove_cvref_t<M>, Messages...>
  [[nodiscard]] auto send(M&& message, StopToken stop = {}) const {
    return detail::SendAwaiter<std::remove_cvref_t<M>>(mailbox_, std::forward<M>(message), stop);
  }

  /// co_await: the answer. Throws ActorClosed, what the handler threw, Stopped, or (with a deadline) DeadlineExceeded.
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, StopToken stop = {}) const {
    return detail::AskAwaiter<R>(mailbox_, std::move(request), TimePoint::max(), stop);
  }
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, TimePoint deadline, StopToken stop = {}) const {
    return detail::AskAwaiter<R>(mailbox_, std::move(request), deadline, stop);
  }
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, Duration limit, StopToken stop = {}) const {
    return ask(std::move(request), EventLoop::current().now() + limit, stop);
  }

  [[nodiscard]] bool closed() const noexcept { return mailbox_ == nullptr || mailbox_->closed(); }
  /// Messages accepted and not taken yet; of interest to metrics only.
  [[nodiscard]] std::uint64_t depth() const noexcept {
    return mailbox_ != nullptr ? mailbox_->depth() : 0;
  }
  friend bool operator==(const Address& a, const Address& b) noexcept {
    return a.mailbox_ == b.mailbox_;
  }

 private:
  template <class...>
  friend class Address;
  template <class, class...>
  friend class Actor;
  explicit Address(detail::Mailbox& mailbox) noexcept : mailbox_(&mailbox) { hold(); }
  void hold() noexcept {
    if (mailbox_ != nullptr) {
      mailbox_->add_reference();
    }
  }

  detail::Mailbox* mailbox_ = nullptr;
};

}  // namespace tandem
