// runtime/address.hpp — a typed, copyable handle for sending to an actor, safe to keep after the
// actor has ended.
//
// Only messages that the actor handles compile. A mailbox is bounded. If it is full, try_send
// returns kFull, `co_await send` waits for room, and `co_await ask` waits for room and for its
// answer, unless the actor has another policy (mailbox_options.hpp). After the actor's end all of
// them report closed. An address converts implicitly to one with fewer messages. Messages of one
// sender arrive in the order of sending (control messages before the others); a merged message
// keeps the position of the one it was merged into.
// Thread rule: copying and try_send() from any thread (the actor's loop must exist);
// send_blocking() from any that runs no loop (the actor's goes on running); send() and ask() in
// coroutines, also of other loops.
// Cancel rule: ask() with a deadline or StopToken ends at once, and a late answer is dropped;
// send() with a StopToken ends at once, on another loop as soon as that loop has taken the message
// out of the wait queue.
//
//   if (address.try_send(Tick(1)) == SendResult::kFull) ...;   co_await address.send(Tick(2));
//   int sum = co_await address.ask(Sum(), 100ms);
//   greedy.start_with(address.with_credits(16));   // never more than 16 of its messages wait
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

#include "runtime/detail/mailbox/mailbox_await.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

template <class... Messages>
class Address {
 public:
  /// An address of no actor: all calls report closed.
  Address() noexcept = default;
  /// From an address that takes these messages, too.
  template <class... Others>
    requires(detail::OneOf<Messages, Others...> && ...)
  Address(const Address<Others...>& other) noexcept  // NOLINT: converts on purpose
      : to_(other.to_) {}

  /// Returns an address for one sender, of which at most `credits` messages may wait (within the
  /// mailbox's bound), so that one sender cannot fill the mailbox. Copies share the credits. A
  /// credit returns when the actor takes the message, and is never lost.
  [[nodiscard]] Address with_credits(std::uint32_t credits) const {
    if (credits == 0) {
      throw user_error("actor", "{}: a share of 0 messages; a sender has one credit at least",
                       name());
    }
    Address mine;
    if (to_.mailbox() != nullptr) {
      auto* share = new detail::SenderShare(credits);
      mine.to_ = detail::Destination(to_.mailbox(), share);
      share->release();  // held by the address now
    }
    return mine;
  }

  /// Any thread; never waits. The message is moved from only if it was sent.
  template <class M>
    requires detail::OneOf<std::remove_cvref_t<M>, Messages...>
  SendResult try_send(M&& message) const {
    using Message = std::remove_cvref_t<M>;
    if constexpr (!std::is_same_v<M, Message>) {
      // A copy that throws must not do so between the credit and the delivery.
      return try_send(Message(std::forward<M>(message)));
    } else {
      detail::Mailbox* mailbox = to_.mailbox();
      if (mailbox == nullptr) {
        return SendResult::kClosed;
      }
      const detail::Admit admit = mailbox->admit(to_.share(), message);
      if (admit == detail::Admit::kReserved) [[likely]] {
        mailbox->deliver(to_.make_envelope<Message>(std::forward<M>(message)));
        return SendResult::kSent;
      }
      return result_of(admit);
    }
  }

  /// For threads that run no loop: sleeps while the mailbox is full, until half of it is free.
  /// kFull only from an actor whose policy is to reject, or that was not started.
  template <class M>
    requires detail::OneOf<M, Messages...>
  SendResult send_blocking(M message) const {
    for (;;) {
      detail::Mailbox* mailbox = to_.mailbox();
      if (mailbox == nullptr) {
        return SendResult::kClosed;
      }
      const detail::Admit admit = mailbox->admit(to_.share(), message);
      if (admit == detail::Admit::kReserved) [[likely]] {
        mailbox->deliver(to_.make_envelope<M>(std::move(message)));
        return SendResult::kSent;
      }
      if (admit != detail::Admit::kWait || !mailbox->wait_queue().sleep_until_room(to_.share())) {
        return result_of(admit);
      }
    }
  }

  /// co_await: until the mailbox took the message. Throws ActorClosed; Stopped by `stop`, and in
  /// place of ActorClosed where the sender's scope was asked to stop.
  template <class M>
    requires detail::OneOf<std::remove_cvref_t<M>, Messages...>
  [[nodiscard]] auto send(M&& message, StopToken stop = {}) const {
    return detail::SendAwaiter<std::remove_cvref_t<M>>(to_, std::forward<M>(message), stop);
  }

  /// co_await: the answer. Throws ActorClosed, what the handler threw, Stopped, or (with a
  /// deadline) DeadlineExceeded.
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, StopToken stop = {}) const {
    return detail::AskAwaiter<R>(to_, std::move(request), TimePoint::max(), stop);
  }
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, TimePoint deadline, StopToken stop = {}) const {
    return detail::AskAwaiter<R>(to_, std::move(request), deadline, stop);
  }
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, Duration limit, StopToken stop = {}) const {
    return ask(std::move(request), time_after(EventLoop::current().now(), limit), stop);
  }
  template <class R, class Rep, class Period>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, std::chrono::duration<Rep, Period> limit,
                         StopToken stop = {}) const {
    return ask(std::move(request), saturated(limit), stop);
  }

  /// The actor's name; "no actor" if there is none.
  [[nodiscard]] const char* name() const noexcept {
    return to_.mailbox() != nullptr ? to_.mailbox()->name() : "no actor";
  }
  /// Internal.
  [[nodiscard]] detail::Mailbox* mailbox() const noexcept { return to_.mailbox(); }
  /// No ordinary message is taken any more.
  [[nodiscard]] bool closed() const noexcept {
    return to_.mailbox() == nullptr || to_.mailbox()->closed();
  }
  /// Messages accepted and not taken yet, control messages aside; of interest to metrics only.
  [[nodiscard]] std::uint64_t depth() const noexcept {
    return to_.mailbox() != nullptr ? to_.mailbox()->depth() : 0;
  }
  /// Counts of the mailbox, over all senders. Any thread.
  [[nodiscard]] MailboxMetrics metrics() const noexcept {
    return to_.mailbox() != nullptr ? to_.mailbox()->metrics() : MailboxMetrics();
  }
  /// The same actor.
  friend bool operator==(const Address& a, const Address& b) noexcept {
    return a.to_.mailbox() == b.to_.mailbox();
  }

 private:
  template <class...>
  friend class Address;
  template <class, class...>
  friend class Actor;
  explicit Address(detail::Mailbox& mailbox) noexcept : to_(&mailbox, nullptr) {}

  [[nodiscard]] SendResult result_of(detail::Admit admit) const noexcept {
    switch (admit) {
      case detail::Admit::kReserved:
      case detail::Admit::kMerged:
        return SendResult::kSent;
      case detail::Admit::kClosed:
        return SendResult::kClosed;
      case detail::Admit::kWait:
      case detail::Admit::kRefused:
        break;
    }
    to_.mailbox()->count_rejected();
    return SendResult::kFull;
  }

  detail::Destination to_;
};

}  // namespace tandem

/// The actor's hash: addresses that == calls equal have equal ones.
template <class... Messages>
struct std::hash<tandem::Address<Messages...>> {
  std::size_t operator()(const tandem::Address<Messages...>& address) const noexcept {
    return std::hash<const void*>()(address.mailbox());
  }
};
