// runtime/reply_to.hpp — the duty to answer one request, to be kept and fulfilled later.
//
// Movable; fulfilled once, by send() or fail(). Dropping it fails the asker; so does the end of the
// actor that holds it. Thread rule: of the actor's loop. The asker may live on another one, and may
// have given up: then the answer is dropped.
//
//   void handle(AcquireUnit request, ReplyTo<AcquireUnit> reply) {
//   waiting_.push_back(std::move(reply)); }
//   ...                                                            waiting_.front().send(slot);
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
  ReplyTo(detail::Mailbox& mailbox, detail::AskMail<R>& mail) noexcept : mail_(&mail) {
    mailbox.add_owed(mail);
  }
  ReplyTo(ReplyTo&& other) noexcept : mail_(std::exchange(other.mail_, nullptr)) {}
  ReplyTo& operator=(ReplyTo&& other) noexcept {
    if (this != &other) {
      drop();
      mail_ = std::exchange(other.mail_, nullptr);
    }
    return *this;
  }
  ~ReplyTo() { drop(); }

  /// send(value), or send() where the reply is void.
  template <class... Args>
    requires(std::is_void_v<Reply> ? sizeof...(Args) == 0 : sizeof...(Args) == 1)
  void send(Args&&... value) {
    if (detail::AskMail<R>* mail = release()) {
      mail->answer(std::forward<Args>(value)...);
    }
  }
  void fail(std::exception_ptr error) noexcept {
    if (detail::AskMail<R>* mail = release()) {
      mail->fail(std::move(error));
    }
  }
  /// False once it was fulfilled or moved from.
  explicit operator bool() const noexcept { return mail_ != nullptr; }

 private:
  // The mail to answer with; null if the asker has been told already that the actor ended.
  detail::AskMail<R>* release() noexcept {
    TANDEM_CHECK(mail_ != nullptr, "a request is answered once");
    detail::AskMail<R>* mail = std::exchange(mail_, nullptr);
    if (mail->failed) {
      mail->drop();
      return nullptr;
    }
    detail::Mailbox::remove_owed(*mail);
    return mail;
  }
  void drop() noexcept {
    if (mail_ != nullptr) {
      const char* name = mail_->type->name;
      fail(detail::reply_dropped_error(name));
    }
  }

  detail::AskMail<R>* mail_;
};

}  // namespace tandem
