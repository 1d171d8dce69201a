// runtime/detail/mailbox/destination.hpp — the destination of an address: a mailbox, and the share
// of it that the sender may fill. Internal.
#pragma once

#include <utility>

#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/trace.hpp"

namespace tandem::detail {

/// Counted references to a mailbox (null: there is no actor) and to the share of a sender (null:
/// none).
class Destination {
 public:
  Destination() noexcept = default;
  Destination(Mailbox* mailbox, SenderShare* share) noexcept : mailbox_(mailbox), share_(share) {
    if (mailbox_ != nullptr) {
      mailbox_->add_reference();
    }
    if (share_ != nullptr) {
      share_->add_reference();
    }
  }
  Destination(const Destination& other) noexcept : Destination(other.mailbox_, other.share_) {}
  Destination(Destination&& other) noexcept
      : mailbox_(std::exchange(other.mailbox_, nullptr)),
        share_(std::exchange(other.share_, nullptr)) {}
  Destination& operator=(Destination other) noexcept {
    std::swap(mailbox_, other.mailbox_);
    std::swap(share_, other.share_);
    return *this;
  }
  ~Destination() {
    if (mailbox_ != nullptr) {
      mailbox_->release();
    }
    if (share_ != nullptr) {
      share_->release();
    }
  }

  [[nodiscard]] Mailbox* mailbox() const noexcept { return mailbox_; }
  [[nodiscard]] SenderShare* share() const noexcept { return share_; }
  [[nodiscard]] const char* name() const noexcept {
    return mailbox_ != nullptr ? mailbox_->name() : "no actor";
  }
  /// True if the thread of `loop` may touch the mailbox's wait queue.
  [[nodiscard]] bool is_near(const EventLoop& loop) const noexcept {
    const EventLoop* home = mailbox_->loop();
    return home == nullptr || home == &loop;
  }

  /// Makes the envelope of a message to the mailbox, which must not be null.
  template <class M, class Arg>
  [[nodiscard]] EnvelopeOf<M>& make_envelope(Arg&& message) const {
    EnvelopeOf<M>& envelope = *make_in_pool<EnvelopeOf<M>>(std::forward<Arg>(message));
    mailbox_->stamp(envelope, share_);
    if (trace::enabled()) [[unlikely]] {
      envelope.flow_id = trace::detail::next_id();
      trace::detail::record({.kind = trace::detail::Kind::kFlowStart,
                             .name = envelope.type->name,
                             .start_ns = trace::detail::now_ns(),
                             .id = envelope.flow_id});
    }
    return envelope;
  }

 private:
  Mailbox* mailbox_ = nullptr;
  SenderShare* share_ = nullptr;
};

}  // namespace tandem::detail
