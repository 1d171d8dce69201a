// What happens at a mailbox without a credit: policies, shares, and the wait queue.
#include <algorithm>
#include <utility>

#include "runtime/detail/mailbox/mailbox.hpp"

namespace tandem::detail {

// ---- senders, any thread
// ---------------------------------------------------------------------------
Reserved Mailbox::reserve_of(SenderShare& share) noexcept {
  if (closed()) {
    return Reserved::kClosed;
  }
  if (!share.try_take(share.limit())) {
    return Reserved::kFull;
  }
  const Reserved result = credits_.reserve();
  if (result != Reserved::kYes) {
    return_share(share);
  }
  return result;
}

// Beyond the bound, for a message that will take another's place; up to twice the bound may be on
// the way.
bool Mailbox::reserve_over(SenderShare* share) noexcept {
  if (share != nullptr && !share->try_take(2 * share->limit())) {
    return false;
  }
  const bool reserved = credits_.reserve_below(2 * credits()) == Reserved::kYes;
  if (!reserved && share != nullptr) {
    return_share(*share);
  }
  return reserved;
}

void Mailbox::return_share(SenderShare& share) noexcept {
  share.give_back();
  if (share.waiting.load() == 0) {
    return;
  }
  EventLoop* home = loop();
  if (home == nullptr || home == EventLoop::current_or_null()) {
    serve_shares();
  } else if (!kicked_.exchange(true)) {
    add_reference();
    home->post_from_any_thread(wakeup_);
  }
}

Admit Mailbox::admit_full(const MessageType& type, void* message, SenderShare* share) noexcept {
  switch (rules_.when_full) {
    case WhenFull::kWait:
      break;
    case WhenFull::kReject:
      return Admit::kRefused;
    case WhenFull::kDropOldest:
      return reserve_over(share) ? Admit::kReserved : Admit::kWait;
    case WhenFull::kCoalesce:
      if (!rules_.merge(type, nullptr, nullptr)) {
        break;
      }
      if (const EventLoop* home = loop(); home == nullptr || home == EventLoop::current_or_null()) {
        return merge_into_waiting(type, message) ? Admit::kMerged : Admit::kWait;
      }
      return reserve_over(share) ? Admit::kReserved : Admit::kWait;
  }
  return Admit::kWait;
}

void Mailbox::deliver_waiting(Envelope& envelope) noexcept {
  EventLoop* home = loop();
  envelope.target = this;
  envelope.sender = sender_name();
  if (envelope.place != nullptr) {
    envelope.place->state = WaitTicket::State::kWaiting;
  }
  if (home == EventLoop::current_or_null() || home == nullptr) {
    join(envelope);
  } else {
    add_reference();  // no credit keeps the mailbox alive meanwhile
    envelope.run = &Mailbox::arrive_waiting;
    home->post_from_any_thread(envelope);
  }
}

// A thread that sleeps until there is room; held by the thread, and by the loop from the post until
// it has woken it.
struct Mailbox::ThreadWait : Op {
  ThreadWait(Mailbox& of, SenderShare* of_share) noexcept
      : Op(&Mailbox::arrive_thread), mailbox(of), share(of_share) {
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

bool Mailbox::wait_for_room(SenderShare* share) noexcept {
  TANDEM_CHECK(EventLoop::current_or_null() == nullptr,
               "a thread that runs a loop does not block: co_await send() there");
  EventLoop* home = loop();
  if (home == nullptr) {
    return false;
  }
  auto* wait = new ThreadWait(*this, share);
  {
    // Under the lock: an actor that ends meanwhile either is seen here or wakes this thread.
    const std::lock_guard lock(sleepers_mutex_);
    if (closed()) {
      wait->holders.store(1);
      wait->release();
      return true;
    }
    sleepers_.push_back(wait);
    home->post_from_any_thread(*wait);
  }
  wait->woken.wait();
  {
    const std::lock_guard lock(sleepers_mutex_);
    std::erase(sleepers_, wait);
  }
  wait->release();
  return true;
}

// ---- arrivals, on the loop
// ---------------------------------------------------------------------------
void Mailbox::place(Envelope& envelope) noexcept {
  if (envelope.control) {
    control_.push(envelope);
    wake_actor();
    return;
  }
  const auto over = [&] {
    return depth() > credits() ||
           (envelope.share != nullptr && envelope.share->used() > envelope.share->limit());
  };
  if (rules_.when_full == WhenFull::kCoalesce && over() &&
      rules_.merge(*envelope.type, nullptr, nullptr) &&
      merge_into_waiting(*envelope.type, rules_.payload(envelope))) {
    return_accepted(envelope, Undelivered::kDropped);  // what is left of it
    return;
  }
  queue_.push(envelope);
  if (rules_.when_full == WhenFull::kDropOldest && over()) {
    drop_excess(envelope);
  }
  if (measuring_.load(std::memory_order_relaxed) &&
      depth() > counters_.depth_max.load(std::memory_order_relaxed)) {
    counters_.depth_max.store(depth(), std::memory_order_relaxed);
  }
  wake_actor();
}

bool Mailbox::merge_into_waiting(const MessageType& type, void* message) noexcept {
  candidates_.clear();
  for (Op* op = queue_.first(); op != nullptr; op = op->next) {
    if (static_cast<Envelope*>(op)->type == &type) {
      candidates_.push_back(static_cast<Envelope*>(op));
    }
  }
  const bool merged = std::any_of(candidates_.rbegin(), candidates_.rend(), [&](Envelope* waiting) {
    return rules_.merge(type, waiting, message);
  });
  if (merged) {
    counters_.coalesced.store(counters_.coalesced.load(std::memory_order_relaxed) + 1,
                              std::memory_order_relaxed);
  }
  return merged;
}

// What waits beyond the bounds, oldest first; what is still on its way counts, so that it will find
// its place.
void Mailbox::drop_excess(const Envelope& newest) noexcept {
  const auto drop_first = [&](auto wanted) {
    Op* op = queue_.take_first(
        [&](Op& at) { return &at != &newest && wanted(static_cast<Envelope&>(at)); });
    if (op != nullptr) {
      counters_.dropped.store(counters_.dropped.load(std::memory_order_relaxed) + 1,
                              std::memory_order_relaxed);
      return_accepted(static_cast<Envelope&>(*op), Undelivered::kDropped);
    }
    return op != nullptr;
  };
  SenderShare* share = newest.share;
  while (share != nullptr && share->used() > share->limit() &&
         drop_first([&](const Envelope& envelope) { return envelope.share == share; })) {
  }
  while (depth() > credits() && drop_first([](const Envelope&) { return true; })) {
  }
}

// ---- the wait queue, on the loop
// ---------------------------------------------------------------------------
namespace {
void tell(Envelope& envelope, WaitTicket::State state) noexcept {
  if (WaitTicket* place = std::exchange(envelope.place, nullptr)) {
    place->state = state;
    if (place->told == nullptr) {
      return;
    }
    if (place->loop == EventLoop::current_or_null()) {
      place->loop->post(*place->told);
    } else {
      place->loop->post_from_any_thread(*place->told);
    }
  }
}

// Ends an envelope that was not accepted; `share`: its reference, no credit.
void return_unaccepted(Envelope& envelope, const char* actor) noexcept {
  SenderShare* share = envelope.share;
  tell(envelope, WaitTicket::State::kReturned);
  envelope.return_undelivered(envelope, actor, Undelivered::kClosed);
  if (share != nullptr) {
    share->release();
  }
}
}  // namespace

void Mailbox::arrive_waiting(Op& op) noexcept {
  auto& envelope = static_cast<Envelope&>(op);
  Mailbox* target = envelope.target;
  target->join(envelope);
  target->release();
}

void Mailbox::arrive_wakeup(Op& op) noexcept {
  Mailbox& mailbox = static_cast<Wakeup&>(op).mailbox;
  mailbox.kicked_.store(false);
  mailbox.serve_shares();
  mailbox.release();
}

void Mailbox::arrive_thread(Op& op) noexcept {
  auto& wait = static_cast<ThreadWait&>(op);
  Mailbox& mailbox = wait.mailbox;
  if (wait.share != nullptr) {
    // A credit that another thread gives back from now on is a kick.
    wait.share->waiting.fetch_add(1);
  }
  mailbox.threads_.push(wait);
  mailbox.add_reference();  // the wait's may end before the look does
  mailbox.wake_threads();
  mailbox.release();
}

// Only when half of the credits are free again: a wake costs as much as many messages.
void Mailbox::wake_threads() noexcept {
  const bool all = closed();
  if (!all && depth() > credits() / 2) {
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

void Mailbox::wake_sleepers() noexcept {
  const std::lock_guard lock(sleepers_mutex_);
  for (ThreadWait* wait : sleepers_) {
    wait->woken.wake();
  }
}

void Mailbox::join(Envelope& envelope) noexcept {
  if (closed()) {
    return_unaccepted(envelope, name_);
    return;
  }
  if (SenderShare* share = envelope.share) {
    share->waiting.fetch_add(1);
    if (!share->try_take(share->limit())) {
      share_wait_queue_.push(envelope);
      return;
    }
    share->waiting.fetch_sub(1);
  }
  join_wait_queue(envelope);
}

// Its share, if it has one, has given its credit.
void Mailbox::join_wait_queue(Envelope& envelope) noexcept {
  switch (wait_queue_.empty() ? credits_.reserve() : Reserved::kFull) {
    case Reserved::kYes:
      tell(envelope, WaitTicket::State::kAccepted);
      enqueue(envelope);
      break;
    case Reserved::kFull:
      wait_queue_.push(envelope);
      break;
    case Reserved::kClosed:
      if (envelope.share != nullptr) {
        envelope.share->give_back();
      }
      return_unaccepted(envelope, name_);
      break;
  }
}

void Mailbox::serve_shares() noexcept {
  while (Op* op = share_wait_queue_.take_first([](Op& at) {
    SenderShare& share = *static_cast<Envelope&>(at).share;
    return share.try_take(share.limit());
  })) {
    Envelope& envelope = static_cast<Envelope&>(*op);
    envelope.share->waiting.fetch_sub(1);
    join_wait_queue(envelope);
  }
  wake_threads();
}

void Mailbox::withdraw(Envelope& envelope) noexcept {
  SenderShare* share = envelope.share;
  if (!wait_queue_.take_out(envelope)) {
    TANDEM_CHECK(share_wait_queue_.take_out(envelope), "an envelope is withdrawn while it waits");
    share->waiting.fetch_sub(1);
  } else if (share != nullptr) {
    share->add_reference();  // release_share() ends one, and the envelope's goes with it below
    release_share(*share);
  }
  envelope.place->state = WaitTicket::State::kWithdrawn;
  envelope.place = nullptr;
  envelope.return_undelivered(envelope, name_, Undelivered::kWithdrawn);
  if (share != nullptr) {
    share->release();
  }
}

void Mailbox::return_waiting() noexcept {
  while (Op* op = wait_queue_.pop()) {
    Envelope& envelope = static_cast<Envelope&>(*op);
    if (envelope.share != nullptr) {
      envelope.share->give_back();
    }
    return_unaccepted(envelope, name_);
  }
  while (Op* op = share_wait_queue_.pop()) {
    Envelope& envelope = static_cast<Envelope&>(*op);
    envelope.share->waiting.fetch_sub(1);
    return_unaccepted(envelope, name_);
  }
  wake_threads();
  wake_sleepers();
}

// ---- departures, on the loop
// ------------------------------------------------------------------------- The credits of a
// message that was taken or returned go to whoever waits for them.
void Mailbox::give_back(SenderShare* share) noexcept {
  if (wait_queue_.empty() || depth() > credits()) {
    credits_.give_back();
  } else {
    Envelope& next = static_cast<Envelope&>(*wait_queue_.pop());
    tell(next, WaitTicket::State::kAccepted);
    enqueue(next);
  }
  if (share != nullptr) {
    release_share(*share);
  }
  if (!threads_.empty()) {
    wake_threads();
  }
}

void Mailbox::release_share(SenderShare& share) noexcept {
  Op* next = nullptr;
  if (share.waiting.load() > 0 && share.used() <= share.limit()) {
    next = share_wait_queue_.take_first(
        [&](Op& op) { return static_cast<Envelope&>(op).share == &share; });
  }
  if (next != nullptr) {
    share.waiting.fetch_sub(1);
    join_wait_queue(static_cast<Envelope&>(*next));
  } else {
    share.give_back();
  }
  share.release();
}

}  // namespace tandem::detail
