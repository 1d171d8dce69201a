// runtime/reply_to.hpp — the duty to answer one request, to be kept and fulfilled later.
//
// It is movable, and is fulfilled once, by send() or fail(). Dropping it fails the asker. If the
// actor ends first, or was asked to stop when the ReplyTo is dropped, the asker gets ActorClosed.
// Thread rule: the actor's loop. The asker may live on another loop. If the asker has given up, the
// answer is dropped.
//
//   void handle(AcquireUnit request, ReplyTo<AcquireUnit> reply) {
//     waiting_.push_back(std::move(reply));
//   }
//   ...
//   waiting_.front().send(slot);
#pragma once

#include <exception>
#include <utility>

#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/detail/mailbox/message.hpp"

namespace tandem {

template <Request R>
class ReplyTo {
 public:
  using Reply = typename R::Reply;

  /// Internal: made by the actor when it hands the request to its handler.
  ReplyTo(detail::Mailbox& mailbox, detail::RequestEnvelope<R>& envelope) noexcept
      : envelope_(&envelope), mailbox_(&mailbox) {
    mailbox.add_pending_reply(envelope);
  }
  ReplyTo(ReplyTo&& other) noexcept
      : envelope_(std::exchange(other.envelope_, nullptr)), mailbox_(other.mailbox_) {}
  ReplyTo& operator=(ReplyTo&& other) noexcept {
    if (this != &other) {
      drop();
      envelope_ = std::exchange(other.envelope_, nullptr);
      mailbox_ = other.mailbox_;
    }
    return *this;
  }
  ~ReplyTo() { drop(); }

  /// Answers the request: send(value), or send() if the reply is void. If a copy of the value
  /// throws, the asker gets that exception, too.
  template <class... Args>
    requires(std::is_void_v<Reply> ? sizeof...(Args) == 0 : sizeof...(Args) == 1)
  void send(Args&&... value) {
    TANDEM_CHECK_FOR(detail::kTypeName<R>, envelope_ != nullptr, "a request is answered once");
    check_thread();
    if (envelope_->failed) {
      (void)release();
      return;
    }
    // The asker is told even if making the value throws.
    const Sending sending(*this);
    envelope_->set_outcome(std::forward<Args>(value)...);
  }
  void fail(std::exception_ptr error) noexcept {
    if (detail::RequestEnvelope<R>* envelope = release()) {
      envelope->fail(std::move(error));
    }
  }
  /// Returns false if the asker has given up (a deadline, a stop) or the actor has ended; then the
  /// work may be left undone. An asker on another loop always counts as waiting.
  [[nodiscard]] bool wanted() const noexcept {
    return envelope_ != nullptr && !envelope_->failed && envelope_->asker != nullptr &&
           (envelope_->link != nullptr || envelope_->asker->asks().waits(envelope_->key));
  }
  /// False once it was fulfilled or moved from.
  explicit operator bool() const noexcept { return envelope_ != nullptr; }

 private:
  struct Sending {
    explicit Sending(ReplyTo& of) noexcept : reply(of) {}
    ~Sending() {
      if (detail::RequestEnvelope<R>* envelope = reply.release()) {
        envelope->send_outcome();
      }
    }
    Sending(const Sending&) = delete;
    Sending& operator=(const Sending&) = delete;
    ReplyTo& reply;
  };
  void check_thread() const noexcept {
    if (!envelope_->failed) {  // else the actor may be gone
      mailbox_->loop()->check_here();
    }
  }
  // The envelope to answer with; null if the asker has been told already that the actor ended.
  detail::RequestEnvelope<R>* release() noexcept {
    TANDEM_CHECK_FOR(detail::kTypeName<R>, envelope_ != nullptr, "a request is answered once");
    check_thread();
    detail::RequestEnvelope<R>* envelope = std::exchange(envelope_, nullptr);
    if (envelope->call != nullptr) {
      std::exchange(envelope->call, nullptr)->reply = nullptr;
    }
    if (envelope->failed) {
      envelope->drop();
      return nullptr;
    }
    detail::Mailbox::remove_pending_reply(*envelope);
    return envelope;
  }
  void drop() noexcept {
    if (envelope_ == nullptr) {
      return;
    }
    check_thread();
    if (envelope_->call != nullptr) {  // its handler says why, if it throws
      std::exchange(envelope_, nullptr)->call->dropped = true;
    } else {
      const char* name = envelope_->type->name;
      fail(envelope_->failed ? nullptr : mailbox_->dropped_reply_error(name));
    }
  }

  detail::RequestEnvelope<R>* envelope_;
  detail::Mailbox* mailbox_;  // lives until its actor has ended and failed what was pending
};

namespace detail {

/// Lives while a handler that has got a ReplyTo runs: the asker gets the handler's exception,
/// unless it has got another answer by then.
template <class R>
class DeferredAnswer {
 public:
  DeferredAnswer(const Mailbox& mailbox, RequestEnvelope<R>& envelope) noexcept
      : mailbox_(mailbox) {
    call_.reply = &envelope;
    envelope.call = &call_;
  }
  ~DeferredAnswer() {
    if (call_.reply == nullptr) {
      return;
    }
    auto& envelope = static_cast<RequestEnvelope<R>&>(*call_.reply);
    envelope.call = nullptr;
    if (call_.dropped) {
      settle(envelope, mailbox_.dropped_reply_error(envelope.type->name));
    }
  }
  DeferredAnswer(const DeferredAnswer&) = delete;
  DeferredAnswer& operator=(const DeferredAnswer&) = delete;
  /// Fails the asker with the exception that is being caught, if the handler dropped its ReplyTo.
  void fail() noexcept {
    if (call_.reply != nullptr && call_.dropped) {
      settle(static_cast<RequestEnvelope<R>&>(*std::exchange(call_.reply, nullptr)),
             mailbox_.error_for_asker(std::current_exception()));
    }
  }

 private:
  static void settle(RequestEnvelope<R>& envelope, std::exception_ptr error) noexcept {
    if (envelope.failed) {
      envelope.drop();
    } else {
      Mailbox::remove_pending_reply(envelope);
      envelope.fail(std::move(error));
    }
  }
  const Mailbox& mailbox_;
  DeferredCall call_;
};

}  // namespace detail
}  // namespace tandem
