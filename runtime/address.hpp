// runtime/address.hpp — a typed, copyable handle for sending to an actor, safe to keep after the
// actor has ended.
//
// Only messages that the actor handles compile. A mailbox is bounded. If it is full, try_send
// returns kFull, `co_await send` waits for room, and `co_await ask` waits for room and for its
// answer, unless the actor has another policy (mailbox_options.hpp). After the actor's end all of
// them report closed. An address converts implicitly to one with fewer messages. Messages of one
// sender arrive in the order of sending (control messages before the others); a merged message
// keeps the position of the one it was merged into.
// Thread rule: any thread may copy an address and call try_send() (the actor's loop must exist).
// send_blocking() is for threads that run no loop, while the actor's loop runs. send() and ask()
// are for coroutines, also of other loops.
// Cancel rule: a deadline or a stop ends ask() at once, and a late answer is dropped. A stop ends
// send() at once on the actor's loop; from another loop it ends send() as soon as the actor's loop
// has taken the message out of the wait queue.
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
  /// Converts from an address that takes at least these messages.
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
  /// Returns kFull only if the actor's policy is to reject, or if it was not started.
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
      if (admit != detail::Admit::kWait || !mailbox->wait_queue().wait_for_room(to_.share())) {
        return result_of(admit);
      }
    }
  }

  /// co_await lasts until the mailbox has taken the message. Throws ActorClosed, or MailboxFull if
  /// the policy is to reject. Throws Stopped after a stop of `stop`, and in place of ActorClosed if
  /// the sender's scope was asked to stop.
  template <class M>
    requires detail::OneOf<std::remove_cvref_t<M>, Messages...>
  [[nodiscard]] auto send(M&& message, StopToken stop = {}) const {
    return detail::SendAwaiter<std::remove_cvref_t<M>>(to_, std::forward<M>(message), stop);
  }

  /// co_await returns the answer. Throws the handler's exception, ActorClosed, MailboxFull or
  /// MessageDropped (by the mailbox's policy), Stopped, or DeadlineExceeded (with a deadline).
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, StopToken stop = {}) const {
    return detail::AskAwaiter<R>(to_, std::move(request), TimePoint::max(), std::move(stop));
  }
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, TimePoint deadline, StopToken stop = {}) const {
    return detail::AskAwaiter<R>(to_, std::move(request), deadline, std::move(stop));
  }
  template <class R>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, Duration limit, StopToken stop = {}) const {
    return ask(std::move(request), time_after(EventLoop::current().now(), limit), std::move(stop));
  }
  template <class R, class Rep, class Period>
    requires(Request<R> && detail::OneOf<R, Messages...>)
  [[nodiscard]] auto ask(R request, std::chrono::duration<Rep, Period> limit,
                         StopToken stop = {}) const {
    return ask(std::move(request), time_after(EventLoop::current().now(), saturated(limit)),
               std::move(stop));
  }

  /// The actor's name; "no actor" if there is none.
  [[nodiscard]] const char* name() const noexcept {
    return to_.mailbox() != nullptr ? to_.mailbox()->name() : "no actor";
  }
  /// Internal.
  [[nodiscard]] detail::Mailbox* mailbox() const noexcept { return to_.mailbox(); }
  /// True if the actor takes no ordinary messages any more.
  [[nodiscard]] bool closed() const noexcept {
    return to_.mailbox() == nullptr || to_.mailbox()->closed();
  }
  /// Returns the number of messages accepted and not taken yet, without control messages; for
  /// metrics only.
  [[nodiscard]] std::uint64_t depth() const noexcept {
    return to_.mailbox() != nullptr ? to_.mailbox()->depth() : 0;
  }
  /// Returns the mailbox's counts over all senders. Any thread.
  [[nodiscard]] MailboxMetrics metrics() const noexcept {
    return to_.mailbox() != nullptr ? to_.mailbox()->metrics() : MailboxMetrics();
  }
  /// True if both addresses name the same actor.
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

/// Hashes the actor, so that equal addresses have equal hashes.
template <class... Messages>
struct std::hash<tandem::Address<Messages...>> {
  std::size_t operator()(const tandem::Address<Messages...>& address) const noexcept {
    return std::hash<const void*>()(address.mailbox());
  }
};
