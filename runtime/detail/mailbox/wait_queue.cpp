#include "runtime/detail/mailbox/wait_queue.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "runtime/clock.hpp"
#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/expected_wait.hpp"
#include "runtime/thread.hpp"
#include "runtime/util/cpu_relax.hpp"
#include "runtime/util/wake_counter.hpp"

namespace tandem::detail {

// ---- senders, any thread ----
void WaitQueue::return_unused(SenderShare& share) noexcept {
  share.give_back();
  if (share.waiting.load() == 0) {
    return;
  }
  const auto serve = [&] {
    serve_share(share);
    wake_threads();
  };
  if (!mailbox_.call_if_near(EventLoop::current_or_null(), serve) &&
      !wakeup_posted_.exchange(true)) {
    mailbox_.add_reference();
    mailbox_.loop()->post_from_any_thread(wakeup_);
  }
}

void WaitQueue::deliver(Envelope& envelope) noexcept {
  envelope.target = &mailbox_;
  envelope.sender = Mailbox::sender_name();
  if (envelope.ticket != nullptr) {
    envelope.ticket->state = WaitTicket::State::kWaiting;
  }
  if (!mailbox_.call_if_near(EventLoop::current_or_null(), [&] { join(envelope); })) {
    mailbox_.add_reference();  // no credit keeps the mailbox alive meanwhile
    envelope.run = &WaitQueue::arrive;
    mailbox_.loop()->post_from_any_thread(envelope);
  }
}

// A thread that sleeps until there is room; held by the thread, and by the loop from the post until
// it has woken it.
struct WaitQueue::ThreadWait : Op {
  ThreadWait(Mailbox& of, SenderShare* of_share) noexcept
      : Op(&WaitQueue::arrive_thread), mailbox(of), share(of_share) {
    mailbox.add_reference();
    if (share != nullptr) {
      share->add_reference();
    }
  }
  void release() noexcept {
    if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      if (share != nullptr) {
        share->release();
      }
      mailbox.release();
      delete this;
    }
  }

  Mailbox& mailbox;
  SenderShare* share;
  WakeCounter woken;
  std::atomic<int> holders{2};
};

// As the runtime's threads do: awake where that is likely to be short, since a sleep and its
// wake-up last as long as hundreds of messages.
bool WaitQueue::wait_for_room(SenderShare* share) noexcept {
  TANDEM_CHECK(EventLoop::current_or_null() == nullptr,
               "a thread that runs a loop does not block: co_await send() there");
  EventLoop* home = mailbox_.loop();
  if (home == nullptr) {
    return false;
  }
  thread_local ExpectedWait expected;
  expected.wait(
      &real_now_ns, [&] { return seems_half_empty(share); },
      [&](std::int64_t until_ns) {
        if (until_ns == ExpectedWait::kNever) {
          sleep_until_room(*home, share);
          return true;
        }
        std::this_thread::sleep_for(std::chrono::nanoseconds(until_ns - real_now_ns()));
        return false;
      },
      {.cpu_now_ns = &thread::cpu_now_ns});
  return true;
}

// The actor writes to these counters for each message, so a look now and then is enough.
bool WaitQueue::seems_half_empty(const SenderShare* share) const noexcept {
  constexpr int kRelaxes = 16;
  for (int i = 0; i < kRelaxes; ++i) {
    cpu_relax();
  }
  return credits_.closed() || (credits_.out() <= credits_.credits() / 2 &&
                               (share == nullptr || share->used() <= share->limit() / 2));
}

void WaitQueue::sleep_until_room(EventLoop& home, SenderShare* share) noexcept {
  auto* wait = new ThreadWait(mailbox_, share);
  {
    // Under the lock: an actor that ends meanwhile either is seen here or wakes this thread.
    const std::lock_guard lock(sleepers_mutex_);
    if (credits_.closed()) {
      wait->holders.store(1);
      wait->release();
      return;
    }
    sleepers_.push_back(wait);
    home.post_from_any_thread(*wait);
  }
  wait->woken.wait();
  {
    const std::lock_guard lock(sleepers_mutex_);
    std::erase(sleepers_, wait);
  }
  wait->release();
}

// ---- the mailbox's loop ----
namespace {
void tell(Envelope& envelope, WaitTicket::State state) noexcept {
  if (WaitTicket* ticket = std::exchange(envelope.ticket, nullptr)) {
    ticket->state = state;
    if (ticket->told == nullptr) {
      return;
    }
    if (ticket->loop == EventLoop::current_or_null()) {
      ticket->loop->post(*ticket->told);
    } else {
      ticket->loop->post_from_any_thread(*ticket->told);
    }
  }
}

// Ends an envelope that was not accepted: it holds a reference to its share, and no credit.
void return_unaccepted(Envelope& envelope, const char* actor) noexcept {
  SenderShare* share = envelope.share;
  tell(envelope, WaitTicket::State::kReturned);
  envelope.return_undelivered(envelope, actor, Undelivered::kClosed);
  if (share != nullptr) {
    share->release();
  }
}
}  // namespace

void WaitQueue::arrive(Op& op) noexcept {
  auto& envelope = static_cast<Envelope&>(op);
  Mailbox* target = envelope.target;
  target->wait_queue().join(envelope);
  target->release();
}

void WaitQueue::arrive_wakeup(Op& op) noexcept {
  WaitQueue& queue = static_cast<Wakeup&>(op).queue;
  queue.wakeup_posted_.store(false);
  queue.serve_shares();
  queue.mailbox_.release();
}

void WaitQueue::arrive_thread(Op& op) noexcept {
  auto& wait = static_cast<ThreadWait&>(op);
  Mailbox& mailbox = wait.mailbox;
  if (wait.share != nullptr) {
    // A credit that another thread gives back from now on wakes the loop.
    wait.share->waiting.fetch_add(1);
  }
  mailbox.wait_queue().threads_.push(wait);
  mailbox.add_reference();  // the wait's may end before the look does
  mailbox.wait_queue().wake_threads();
  mailbox.release();
}

// Only when half of the credits are free again: a wake costs as much as many messages.
void WaitQueue::wake_threads() noexcept {
  const bool all = credits_.closed();
  if (!all && credits_.out() > credits_.credits() / 2) {
    return;
  }
  while (Op* op = threads_.take_first([&](Op& at) {
    const SenderShare* share = static_cast<ThreadWait&>(at).share;
    return all || share == nullptr || share->used() <= share->limit() / 2;
  })) {
    auto& wait = static_cast<ThreadWait&>(*op);
    if (wait.share != nullptr) {
      wait.share->waiting.fetch_sub(1);
    }
    wait.woken.wake();
    wait.release();
  }
}

void WaitQueue::wake_sleepers() noexcept {
  const std::lock_guard lock(sleepers_mutex_);
  for (ThreadWait* wait : sleepers_) {
    wait->woken.wake();
  }
}

void WaitQueue::join(Envelope& envelope) noexcept {
  if (credits_.closed()) {
    return_unaccepted(envelope, mailbox_.name());
    return;
  }
  if (SenderShare* share = envelope.share) {
    share->waiting.fetch_add(1);
    if (!share->try_take(share->limit())) {
      enter_share(envelope);
      return;
    }
    share->waiting.fetch_sub(1);
  }
  join_with_share(envelope);
}

// Its share, if it has one, has given its credit.
void WaitQueue::join_with_share(Envelope& envelope) noexcept {
  switch (envelopes_.empty() ? credits_.reserve() : Reserved::kFull) {
    case Reserved::kYes:
      tell(envelope, WaitTicket::State::kAccepted);
      mailbox_.accept(envelope);
      break;
    case Reserved::kFull:
      envelopes_.push(envelope);
      break;
    case Reserved::kClosed:
      if (envelope.share != nullptr) {
        envelope.share->give_back();
      }
      return_unaccepted(envelope, mailbox_.name());
      break;
  }
}

void WaitQueue::enter_share(Envelope& envelope) noexcept {
  envelope.waits_for_share = true;
  if (envelope.share->envelopes.empty()) {
    shares_.push(*envelope.share);
  }
  envelope.share->envelopes.push(envelope);
}

void WaitQueue::leave_share(Envelope& envelope) noexcept {
  SenderShare& share = *envelope.share;
  envelope.waits_for_share = false;
  share.envelopes.take_out(envelope);
  if (share.envelopes.empty()) {
    shares_.take_out(share);
  }
  share.waiting.fetch_sub(1);
}

void WaitQueue::serve_share(SenderShare& share) noexcept {
  share.add_reference();  // an envelope that is returned gives its own up
  while (Envelope* next = share.envelopes.first()) {
    if (!share.try_take(share.limit())) {
      break;
    }
    leave_share(*next);
    join_with_share(*next);
  }
  share.release();
}

// Some thread has given a credit of some share back: each is looked at once.
void WaitQueue::serve_shares() noexcept {
  std::size_t left = 0;
  for (SenderShare* share = shares_.first(); share != nullptr; share = share->next) {
    ++left;
  }
  for (; left > 0 && !shares_.empty(); --left) {
    SenderShare& share = *shares_.pop();
    shares_.push(share);
    serve_share(share);
  }
  wake_threads();
}

void WaitQueue::withdraw(Envelope& envelope) noexcept {
  SenderShare* share = envelope.share;
  if (envelope.waits_for_share) {
    leave_share(envelope);
  } else {
    envelopes_.take_out(envelope);
    if (share != nullptr) {
      share->add_reference();  // release_share() ends one, and the envelope's goes with it below
      release_share(*share);
    }
  }
  envelope.ticket->state = WaitTicket::State::kWithdrawn;
  envelope.ticket = nullptr;
  envelope.return_undelivered(envelope, mailbox_.name(), Undelivered::kWithdrawn);
  if (share != nullptr) {
    share->release();
  }
}

void WaitQueue::return_all() noexcept {
  while (Envelope* next = envelopes_.pop()) {
    Envelope& envelope = *next;
    if (envelope.share != nullptr) {
      envelope.share->give_back();
    }
    return_unaccepted(envelope, mailbox_.name());
  }
  while (SenderShare* share = shares_.first()) {
    Envelope& envelope = *share->envelopes.first();
    leave_share(envelope);
    return_unaccepted(envelope, mailbox_.name());
  }
  wake_threads();
  wake_sleepers();
}

void WaitQueue::give_back(SenderShare* share) noexcept {
  if (envelopes_.empty() || credits_.out() > credits_.credits()) {
    credits_.give_back();
  } else {
    Envelope& next = *envelopes_.pop();
    tell(next, WaitTicket::State::kAccepted);
    mailbox_.accept(next);
  }
  if (share != nullptr) {
    release_share(*share);
  }
  if (!threads_.empty()) {
    wake_threads();
  }
}

void WaitQueue::release_share(SenderShare& share) noexcept {
  Envelope* next = nullptr;
  if (share.waiting.load() > 0 && share.used() <= share.limit()) {
    next = share.envelopes.first();
  }
  if (next != nullptr) {
    leave_share(*next);
    join_with_share(*next);
  } else {
    share.give_back();
  }
  share.release();
}

}  // namespace tandem::detail
