// runtime/message_tap.hpp — a tap, which gets every message on its way into the mailboxes of one
// loop: the test kit and the simulator use it to deliver, delay, reorder and drop messages.
//
// The tap owns each message until it delivers or drops it. A held message keeps its credit and its
// mailbox, and a closed actor waits for it, as for one that is on its way from another thread. Asks
// are messages; answers are not tapped. Messages of one sender keep their order only if the tap
// keeps it.
// Thread rule: the loop's thread (or the owner's while the loop does not run). The tap outlives its
// installation, and must hold no message when the loop is destroyed.
// Cost without a tap: none (the mailbox tests one flag for this and for other cases).
//
//   struct Slow : MessageTap {
//     void on_message(TappedMessage message) override { held.push_back(std::move(message)); }
//     ... held;
//   };
//   loop.set_message_tap(&slow);   ...   slow.held.front().deliver();
#pragma once

#include <utility>

#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/detail/mailbox/message.hpp"

namespace tandem {

/// A message that a tap holds. Movable; dropped with its last handle.
class TappedMessage {
 public:
  TappedMessage() noexcept = default;
  TappedMessage(TappedMessage&& other) noexcept
      : envelope_(std::exchange(other.envelope_, nullptr)) {}
  TappedMessage& operator=(TappedMessage&& other) noexcept {
    if (this != &other) {
      drop();
      envelope_ = std::exchange(other.envelope_, nullptr);
    }
    return *this;
  }
  ~TappedMessage() { drop(); }

  /// Puts the message into its mailbox, or returns it undelivered if the actor has ended meanwhile.
  void deliver() noexcept {
    if (detail::Envelope* envelope = std::exchange(envelope_, nullptr)) {
      envelope->target->deliver_tapped(*envelope);
    }
  }
  /// Drops the message: its credit goes back, and an asker gets ActorClosed. A message that waited
  /// in the wait queue for the credit is tapped in this call.
  void drop() noexcept {
    if (detail::Envelope* envelope = std::exchange(envelope_, nullptr)) {
      envelope->target->drop_tapped(*envelope);
    }
  }

  /// False once it was delivered, dropped or moved from; then none of the functions below may be
  /// called.
  explicit operator bool() const noexcept { return envelope_ != nullptr; }
  /// The name of the message's type.
  [[nodiscard]] const char* message() const noexcept { return envelope_->type->name; }
  /// The name of the actor or task that sent it; "outside" if that was no task of a loop.
  [[nodiscard]] const char* from() const noexcept { return envelope_->sender; }
  /// The name of the actor it is for.
  [[nodiscard]] const char* to() const noexcept { return envelope_->target->name(); }
  /// Tells actors of the same name apart.
  [[nodiscard]] const void* target() const noexcept { return envelope_->target; }
  template <class M>
  [[nodiscard]] bool is() const noexcept {
    return envelope_->type == &detail::kMessageType<M>;
  }
  /// The message itself; only if is<M>().
  template <class M>
  [[nodiscard]] const M& get() const noexcept {
    if constexpr (Request<M>) {
      return static_cast<const detail::RequestEnvelope<M>*>(envelope_)->request;
    } else {
      return static_cast<const detail::MessageEnvelope<M>*>(envelope_)->message;
    }
  }

 private:
  friend class detail::Mailbox;
  explicit TappedMessage(detail::Envelope& envelope) noexcept : envelope_(&envelope) {}
  detail::Envelope* envelope_ = nullptr;
};

class MessageTap {
 public:
  virtual ~MessageTap() = default;
  /// May deliver at once. Must not throw: the sender would be blamed.
  virtual void on_message(TappedMessage envelope) noexcept = 0;
};

}  // namespace tandem
