#include "runtime/mailbox.hpp"

#include "runtime/mail_tap.hpp"

namespace tandem {

ActorClosed::ActorClosed(const char* actor)
    : Error(ExitCode::kFailure, fmt::format("[actor] {} does not take messages any more", actor)) {}

namespace detail {

std::exception_ptr actor_closed_error(const char* actor) noexcept {
  return std::make_exception_ptr(ActorClosed(actor));
}

std::exception_ptr reply_dropped_error(const char* request) noexcept {
  return std::make_exception_ptr(
      failure(ExitCode::kFailure, "actor", "{} was dropped without an answer", request));
}

void Mailbox::release() noexcept {
  // acq_rel: what others did with the mailbox is done before it goes.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete this;
  }
}

void Mailbox::deliver_in_line(Mail& mail) noexcept {
  EventLoop* loop = loop_.load(std::memory_order_acquire);
  mail.target = this;
  mail.sender = sender_name();
  if (loop == EventLoop::current_or_null() || loop == nullptr) {
    join_line(mail);
  } else {
    add_reference();  // no credit keeps the mailbox alive meanwhile
    mail.run = &Mailbox::arrive_in_line;
    loop->post_from_any_thread(mail);
  }
}

void Mailbox::arrive(Op& op) noexcept {
  auto& mail = static_cast<Mail&>(op);
  mail.target->enqueue(mail);
}

void Mailbox::arrive_in_line(Op& op) noexcept {
  auto& mail = static_cast<Mail&>(op);
  Mailbox* target = mail.target;
  target->join_line(mail);
  target->release();
}

void Mailbox::join_line(Mail& mail) noexcept {
  line_.push(mail);
  serve_line();
}

namespace {
void tell(Mail& mail, bool bounced) noexcept {
  if (SendWaiter* waiter = std::exchange(mail.waiter, nullptr)) {
    waiter->bounced = bounced;
    if (waiter->loop == EventLoop::current_or_null()) {
      waiter->loop->post(waiter->resume);
    } else {
      waiter->loop->post_from_any_thread(waiter->resume);
    }
  }
}
}  // namespace

// As many of the line as there are credits for; all of them bounce when the mailbox is closed.
void Mailbox::serve_line() noexcept {
  while (!line_.empty()) {
    SendResult result = ended_ ? SendResult::kClosed : reserve();
    if (result == SendResult::kFull) {
      return;
    }
    Mail& mail = static_cast<Mail&>(*line_.pop());
    if (mail.withdrawn || result == SendResult::kClosed) {
      if (result == SendResult::kSent) {
        count_taken();
      }
      tell(mail, true);
      mail.bounce(mail, name_);
      continue;
    }
    tell(mail, false);
    enqueue(mail);
  }
}

Mail* Mailbox::take() noexcept {
  Op* op = queue_.pop();
  if (op == nullptr) {
    return nullptr;
  }
  count_taken();
  if (!line_.empty()) [[unlikely]] {
    serve_line();
  }
  return static_cast<Mail*>(op);
}

void Mailbox::close() noexcept {
  sent_.fetch_or(kClosedBit, std::memory_order_relaxed);
  serve_line();
  if (drained()) {
    wake_actor();
  }
}

void Mailbox::stop() noexcept {
  stopped_ = true;
  close();
}

void Mailbox::end() noexcept {
  sent_.fetch_or(kClosedBit, std::memory_order_relaxed);
  ended_ = true;
  diverted_ = true;
  leave_loop();
  while (Op* op = queue_.pop()) {
    bounce_accepted(static_cast<Mail&>(*op));
  }
  serve_line();
  while (OwedAnswer* owed = owed_) {
    remove_owed(*owed);
    owed->fail_closed(*owed, name_);
  }
}

void Mailbox::bounce_accepted(Mail& mail) noexcept {
  mail.bounce(mail, name_);
  count_taken();
  if (abandoned_ && depth() == 0) {
    release();
  }
}

void Mailbox::abandon() noexcept {
  TANDEM_CHECK(loop_.load() == nullptr || ended_,
               "an actor died before it had ended: close it, then join its scope");
  end();
  abandoned_ = true;
  if (depth() == 0) {
    release();
  }
}

void Mailbox::open(EventLoop& loop) noexcept {
  loop_.store(&loop, std::memory_order_release);
  detail::LoopRegistry& registry = loop.registry();
  next_on_loop_ = registry.first_mailbox;
  link_on_loop_ = &registry.first_mailbox;
  if (next_on_loop_ != nullptr) {
    next_on_loop_->link_on_loop_ = &next_on_loop_;
  }
  registry.first_mailbox = this;
  if (registry.mail_tap != nullptr) {
    update_tap();
    OpQueue<Op> early;  // sent before the actor was started
    early.append(queue_);
    while (Op* op = early.pop()) {
      divert(static_cast<Mail&>(*op));
    }
  }
}

void Mailbox::leave_loop() noexcept {
  if (link_on_loop_ != nullptr) {
    *link_on_loop_ = next_on_loop_;
    if (next_on_loop_ != nullptr) {
      next_on_loop_->link_on_loop_ = link_on_loop_;
    }
    link_on_loop_ = nullptr;
  }
}

void Mailbox::update_tap() noexcept {
  diverted_ = ended_ || loop_.load(std::memory_order_relaxed)->mail_tap() != nullptr;
}

void Mailbox::divert(Mail& mail) noexcept {
  if (ended_) {
    bounce_accepted(mail);
    return;
  }
  mail.target = this;
  if (mail.sender == nullptr) {
    mail.sender = sender_name();
  }
  loop_.load(std::memory_order_relaxed)->mail_tap()->on_mail(TappedMail(mail));
}

void Mailbox::deliver_tapped(Mail& mail) noexcept {
  if (ended_) {
    bounce_accepted(mail);
    return;
  }
  queue_.push(mail);
  wake_actor();
}

// As if the actor had taken it: the credit is free for those in line, and a closed actor may have waited for this one.
void Mailbox::drop_tapped(Mail& mail) noexcept {
  if (ended_) {
    bounce_accepted(mail);
    return;
  }
  mail.bounce(mail, name_);
  count_taken();
  serve_line();
  if (drained()) {
    wake_actor();
  }
}

void Mailbox::add_owed(OwedAnswer& answer) noexcept {
  answer.next_owed = owed_;
  answer.link_to_this = &owed_;
  if (owed_ != nullptr) {
    owed_->link_to_this = &answer.next_owed;
  }
  owed_ = &answer;
}

void Mailbox::remove_owed(OwedAnswer& answer) noexcept {
  if (answer.link_to_this != nullptr) {
    *answer.link_to_this = answer.next_owed;
    if (answer.next_owed != nullptr) {
      answer.next_owed->link_to_this = answer.link_to_this;
    }
    answer.link_to_this = nullptr;
  }
}

}  // namespace detail
}  // namespace tandem
