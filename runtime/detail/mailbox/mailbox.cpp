#include "runtime/detail/mailbox/mailbox.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/exit_reason.hpp"
#include "runtime/message_tap.hpp"
#include "runtime/scope.hpp"

namespace tandem {

ActorClosed::ActorClosed(const char* actor)
    : Error(ExitCode::kFailure, fmt::format("[actor] {} does not take messages any more", actor)) {}

MailboxFull::MailboxFull(const char* message, const char* actor, std::uint64_t waiting)
    : Error(ExitCode::kFailure, fmt::format("[actor] {} was refused by {}: {} messages wait there, "
                                            "as many as it takes; send fewer, or later",
                                            message, actor, waiting)) {}

MessageDropped::MessageDropped(const char* message, const char* actor)
    : Error(ExitCode::kFailure, fmt::format("[actor] {} was dropped by {}, whose mailbox was full "
                                            "and takes newer messages first; ask again",
                                            message, actor)) {}

namespace detail {

std::exception_ptr actor_closed_error(const char* actor) noexcept {
  return std::make_exception_ptr(ActorClosed(actor));
}

std::exception_ptr message_dropped_error(const char* request, const char* actor) noexcept {
  return std::make_exception_ptr(MessageDropped(request, actor));
}

std::exception_ptr reply_dropped_error(const char* request) noexcept {
  return std::make_exception_ptr(
      failure(ExitCode::kFailure, "actor", "{} was dropped without an answer", request));
}

namespace {
constinit thread_local Mailbox* t_inherited = nullptr;
}

Mailbox::Inheritance::Inheritance(Mailbox* mailbox) noexcept { t_inherited = mailbox; }
Mailbox::Inheritance::~Inheritance() { t_inherited = nullptr; }

Mailbox* Mailbox::make_or_inherit(const char* name, const MailboxOptions& options,
                                  const Rules& rules, bool& inherited) {
  Mailbox* mailbox = std::exchange(t_inherited, nullptr);
  inherited = mailbox != nullptr;
  return inherited ? mailbox : new Mailbox(name, options, rules);
}

void Mailbox::release() noexcept {
  // acq_rel: what others did with the mailbox is done before it goes.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete this;
  }
}

Mailbox::Mailbox(const char* name, const MailboxOptions& options, const Rules& rules)
    : name_(name),
      measuring_(options.measure),
      credits_(options.credits),
      policy_(rules, *this, queue_) {
  if (options.credits == 0) {
    throw user_error("actor", "{}: a mailbox of 0 messages; give it room for one at least", name);
  }
  update_diverted();
}

std::recursive_mutex& Mailbox::before_start() noexcept {
  static std::recursive_mutex& mutex = *new std::recursive_mutex;
  return mutex;
}

// `loop` is another one, or the actor was not started yet.
void Mailbox::deliver_elsewhere(Envelope& envelope, EventLoop* loop) noexcept {
  if (loop == nullptr) {
    {
      const std::lock_guard lock(before_start());
      if (loop_.load(std::memory_order_relaxed) == nullptr) {
        accept(envelope);
        return;
      }
    }
    deliver(envelope);
    return;
  }
  envelope.target = this;
  envelope.sender = sender_name();
  envelope.run = &Mailbox::arrive;
  loop->post_from_any_thread(envelope);
}

bool Mailbox::handler_waits_for(const TaskPromiseBase& awaiting) const noexcept {
  const TaskPromiseBase* at = &awaiting;
  while (at != nullptr && at != resume_.promise) {
    at = at->parent;
  }
  return at != nullptr;
}

void Mailbox::close_from_any_thread() noexcept {
  if (closed()) {
    return;  // its loop may be gone
  }
  EventLoop* home = loop();
  const bool here =
      home != nullptr && (home == EventLoop::current_or_null() || home->is_owned_here());
  if (!call_if_near(here ? home : nullptr, [this] { close(); })) {
    credits_.close();
    add_reference();
    loop()->post([this] {
      close();
      release();
    });
  }
}

void Mailbox::give_up(Scope& scope, RootTask::promise_type& root) noexcept {
  EventLoop& loop = scope.loop();
  const bool waits = waiting_ || loop.take_back(resume_);
  if (waits || loop.take_back(root.start_op)) {
    waiting_ = false;
    scope.leave(root);
    if (waits) {
      resume_.promise->continuation = nullptr;  // destroyed where it waits, on purpose
    }
    std::coroutine_handle<RootTask::promise_type>::from_promise(root).destroy();
  } else {
    // (A start from another thread that has not arrived yet is no task of the scope.)
    TANDEM_CHECK_FOR(name_, !loop.is_running() && root.start_op.run == &ResumeOp::resume,
                     "an actor died while its handler ran: make it by scope.start<A>()");
    std::fprintf(stderr,
                 "[runtime] actor \"%s\" was destroyed by an exception while its handler ran, and "
                 "its loop with it; scope.start<A>() ends it first\n",
                 name_);
    scope.leave(root);
    loop.give_up(name_);
  }
  end();
}

void Mailbox::deliver_control(Envelope& envelope) noexcept {
  if (reserve_control()) {
    deliver(envelope);
  } else {
    envelope.return_undelivered(envelope, name_, Undelivered::kClosed);
  }
}

void Mailbox::arrive(Op& op) noexcept {
  auto& envelope = static_cast<Envelope&>(op);
  envelope.target->accept(envelope);
}

Reserved Mailbox::reserve(SenderShare* share, std::uint64_t times) noexcept {
  if (closed()) {
    return Reserved::kClosed;
  }
  if (share != nullptr && !share->try_take(times * share->limit())) {
    return Reserved::kFull;
  }
  const Reserved result = credits_.reserve_below(times * credits());
  if (result != Reserved::kYes && share != nullptr) {
    wait_queue_.return_unused(*share);
  }
  return result;
}

bool Mailbox::reserve_control() noexcept {
  std::uint64_t sent = control_sent_.load(std::memory_order_relaxed);
  do {
    if ((sent & kClosedBit) != 0) {
      return false;
    }
  } while (!control_sent_.compare_exchange_weak(sent, sent + 1, std::memory_order_relaxed));
  return true;
}

void Mailbox::note(Envelope& envelope, SenderShare* share) const noexcept {
  if (share != nullptr && !envelope.control) {
    share->add_reference();
    envelope.share = share;
    envelope.noted = true;
  }
  if (measuring_.load(std::memory_order_relaxed)) {
    envelope.sent_ns = now_ns();
    envelope.noted = true;
  }
}

Envelope* Mailbox::take_and_check() noexcept {
  Op* op = control_.pop();
  if (op != nullptr) {
    ++control_taken_;
  } else {
    op = queue_.pop();
  }
  if (op == nullptr) {
    return nullptr;
  }
  Envelope& envelope = static_cast<Envelope&>(*op);
  settle_taken(envelope);
  return &envelope;
}

void Mailbox::settle_taken(Envelope& envelope) noexcept {
  if (envelope.sent_ns != 0) {
    const std::int64_t waited_ns = std::max<std::int64_t>(now_ns() - envelope.sent_ns, 0);
    const auto add = [](auto& counter, auto by) {
      counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
    };
    add(counters_.waited, 1U);
    add(counters_.waited_total_ns, waited_ns);
    if (waited_ns > counters_.waited_max_ns.load(std::memory_order_relaxed)) {
      counters_.waited_max_ns.store(waited_ns, std::memory_order_relaxed);
    }
  }
  if (!envelope.control) {
    leave_share(envelope);
    wait_queue_.give_back(std::exchange(envelope.share, nullptr));
  }
}

void Mailbox::leave_share(const Envelope& envelope) noexcept {
  if (envelope.share != nullptr) {
    envelope.share->remove_queued(envelope);
  }
}

MailboxMetrics Mailbox::metrics() const noexcept {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  return {.depth = depth(),
          .depth_max = counters_.depth_max.load(kRelaxed),
          .waited = counters_.waited.load(kRelaxed),
          .waited_total = Duration(counters_.waited_total_ns.load(kRelaxed)),
          .waited_max = Duration(counters_.waited_max_ns.load(kRelaxed)),
          .rejected = rejected_.load(kRelaxed),
          .dropped = policy_.dropped(),
          .coalesced = policy_.coalesced()};
}

void Mailbox::measure(bool on) noexcept {
  measuring_.store(on, std::memory_order_relaxed);
  update_diverted();
}

std::int64_t Mailbox::now_ns() const noexcept {
  const EventLoop* loop = loop_.load(std::memory_order_acquire);
  // 0 says "not measured": before the start there is no clock, and a manual clock may stand at 0.
  return loop != nullptr ? std::max<std::int64_t>(loop->now().time_since_epoch().count(), 1) : 0;
}

std::exception_ptr Mailbox::error_for_asker(std::exception_ptr error) const noexcept {
  return stopped_ && is_stopped(error) ? actor_closed_error(name_) : error;
}

std::exception_ptr Mailbox::dropped_reply_error(const char* request) const noexcept {
  return stopped_ ? actor_closed_error(name_) : reply_dropped_error(request);
}

void Mailbox::close() noexcept {
  credits_.close();
  wait_queue_.return_all();
  while (planted(Bug::kDroppedOnClose) && !queue_.empty()) {
    return_accepted(static_cast<Envelope&>(*queue_.pop()), Undelivered::kClosed);
  }
  if (drained()) {
    wake_actor();
  }
}

void Mailbox::stop() noexcept {
  stopped_ = true;
  close();
}

bool Mailbox::seal() noexcept {
  std::uint64_t taken = control_taken_;
  return stopped_ || control_sent_.compare_exchange_strong(taken, taken | kClosedBit,
                                                           std::memory_order_relaxed);
}

void Mailbox::halt() noexcept {
  stopped_ = true;
  wake_actor();
}

void Mailbox::end() noexcept {
  credits_.close();
  control_sent_.fetch_or(kClosedBit, std::memory_order_relaxed);
  ended_ = true;
  update_diverted();
  leave_loop();
  wait_queue_.return_all();
  for (OpQueue<Op>* queue : {&control_, &queue_}) {
    while (Op* op = queue->pop()) {
      return_accepted(static_cast<Envelope&>(*op), Undelivered::kClosed);
    }
  }
  while (PendingReply* pending = pending_) {
    remove_pending_reply(*pending);
    if (planted(Bug::kPendingReplyUnlinked)) {
      continue;
    }
    pending->fail_closed(*pending, name_);
  }
}

void Mailbox::return_accepted(Envelope& envelope, Undelivered why) noexcept {
  const bool control = envelope.control;
  SenderShare* share = envelope.share;
  leave_share(envelope);
  envelope.return_undelivered(envelope, name_, why);
  if (control) {
    ++control_taken_;
  } else if (!planted(Bug::kCreditLeak)) {
    wait_queue_.give_back(share);
  }
  if (planted(Bug::kReturnedTwice)) {
    credits_.give_back();
  }
  free_if_unused();
}

void Mailbox::abandon() noexcept {
  TANDEM_CHECK_FOR(name_, loop_.load() == nullptr || ended_,
                   "an actor died before it had ended: close it, then join its scope, or make it "
                   "by scope.start<A>()");
  if (!call_if_near(EventLoop::current_or_null(), [this] { end(); })) {
    end();  // it has ended before
  }
  watchers_.tell({.kind = ExitReason::Kind::kStopped, .actor = name_});
  abandoned_ = true;
  free_if_unused();
}

// A message that is still on its way from another thread keeps the mailbox.
void Mailbox::free_if_unused() noexcept {
  if (abandoned_ && depth() == 0 && control_depth() == 0) {
    abandoned_ = false;
    release();
  }
}

void Mailbox::open(EventLoop& loop, StopToken stop) noexcept {
  const std::lock_guard lock(before_start());
  stopped_ = false;
  stop_ = std::move(stop);
  if (link_on_loop_ != nullptr) {
    return;  // a fresh actor behind it
  }
  loop_.store(&loop, std::memory_order_release);
  detail::LoopRegistry& registry = loop.registry();
  next_on_loop_ = registry.first_mailbox;
  link_on_loop_ = &registry.first_mailbox;
  if (next_on_loop_ != nullptr) {
    next_on_loop_->link_on_loop_ = &next_on_loop_;
  }
  registry.first_mailbox = this;
  if (registry.message_tap != nullptr) {
    update_tap();
    OpQueue<Op> early;  // sent before the actor was started
    early.append(control_);
    early.append(queue_);
    while (Op* op = early.pop()) {
      divert(static_cast<Envelope&>(*op));
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

void Mailbox::update_diverted() noexcept {
  const EventLoop* loop = loop_.load(std::memory_order_relaxed);
  diverted_ = ended_ || (loop != nullptr && loop->message_tap() != nullptr) ||
              policy_.looks_at_arrivals() || measuring_.load(std::memory_order_relaxed);
}

void Mailbox::divert(Envelope& envelope) noexcept {
  if (ended_) {
    return_accepted(envelope, Undelivered::kClosed);
    return;
  }
  EventLoop* loop = loop_.load(std::memory_order_relaxed);
  MessageTap* tap = loop != nullptr ? loop->message_tap() : nullptr;
  if (tap == nullptr) {
    place(envelope);
    return;
  }
  envelope.target = this;
  if (envelope.sender == nullptr) {
    envelope.sender = sender_name();
  }
  tap->on_message(TappedMessage(envelope));
}

void Mailbox::place(Envelope& envelope) noexcept {
  if (envelope.control) {
    control_.push(envelope);
  } else if (!policy_.place(envelope)) {
    return;
  } else if (measuring_.load(std::memory_order_relaxed) &&
             depth() > counters_.depth_max.load(std::memory_order_relaxed)) {
    counters_.depth_max.store(depth(), std::memory_order_relaxed);
  }
  wake_actor();
}

void Mailbox::deliver_tapped(Envelope& envelope) noexcept {
  if (ended_) {
    return_accepted(envelope, Undelivered::kClosed);
    return;
  }
  place(envelope);
}

// As if the actor had taken it: the credit is free for those in the wait queue, and a closed actor
// may have waited for this one.
void Mailbox::drop_tapped(Envelope& envelope) noexcept {
  if (ended_) {
    return_accepted(envelope, Undelivered::kClosed);
    return;
  }
  return_accepted(envelope, Undelivered::kClosed);
  if (drained()) {
    wake_actor();
  }
}

void Mailbox::add_pending_reply(PendingReply& answer) noexcept {
  answer.next_pending_reply = pending_;
  answer.link_to_this = &pending_;
  if (pending_ != nullptr) {
    pending_->link_to_this = &answer.next_pending_reply;
  }
  pending_ = &answer;
}

void Mailbox::remove_pending_reply(PendingReply& answer) noexcept {
  if (answer.link_to_this != nullptr) {
    *answer.link_to_this = answer.next_pending_reply;
    if (answer.next_pending_reply != nullptr) {
      answer.next_pending_reply->link_to_this = answer.link_to_this;
    }
    answer.link_to_this = nullptr;
  }
}

}  // namespace detail
}  // namespace tandem
