#include "runtime/detail/mailbox/overflow_policy.hpp"

#include <utility>

#include "runtime/detail/mailbox/mailbox.hpp"

namespace tandem::detail {

namespace {
// Written on the loop only.
void count_one(std::atomic<std::uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}
}  // namespace

void SenderShare::add_queued(Envelope& envelope) noexcept {
  envelope.next_of_share = nullptr;
  (oldest_queued_ == nullptr ? oldest_queued_ : newest_queued_->next_of_share) = &envelope;
  newest_queued_ = &envelope;
}

void SenderShare::remove_queued(const Envelope& envelope) noexcept {
  if (oldest_queued_ == &envelope) {
    oldest_queued_ = std::exchange(oldest_queued_->next_of_share, nullptr);
  }
}

OverflowPolicy::OverflowPolicy(const Rules& rules, Mailbox& mailbox, OpQueue<Op>& queue) noexcept
    : rules_(rules), mailbox_(mailbox), queue_(queue) {}

Admit OverflowPolicy::admit(const MessageType& type, void* message, SenderShare* share) noexcept {
  const auto over_the_bound = [&] {
    return mailbox_.reserve(share, 2) == Reserved::kYes ? Admit::kReserved : Admit::kWait;
  };
  switch (rules_.when_full) {
    case WhenFull::kWait:
      break;
    case WhenFull::kReject:
      return Admit::kRefused;
    case WhenFull::kDropOldest:
      return over_the_bound();
    case WhenFull::kCoalesce:
      if (!rules_.merge(type, nullptr, nullptr)) {
        break;
      }
      if (bool merged = false; mailbox_.call_if_near(
              EventLoop::current_or_null(), [&] { merged = merge_into_waiting(type, message); })) {
        return merged ? Admit::kMerged : Admit::kWait;
      }
      return over_the_bound();
  }
  return Admit::kWait;
}

bool OverflowPolicy::is_over(const Envelope& newest) const noexcept {
  return mailbox_.depth() > mailbox_.credits() ||
         (newest.share != nullptr && newest.share->used() > newest.share->limit());
}

bool OverflowPolicy::place(Envelope& envelope) noexcept {
  if (rules_.when_full == WhenFull::kCoalesce && is_over(envelope) &&
      rules_.merge(*envelope.type, nullptr, nullptr) &&
      merge_into_waiting(*envelope.type, rules_.payload(envelope))) {
    mailbox_.return_accepted(envelope, Undelivered::kDropped);  // what is left of it
    return false;
  }
  envelope.previous = newest_;
  newest_ = &envelope;
  queue_.push(envelope);
  if (rules_.when_full == WhenFull::kDropOldest) {
    if (envelope.share != nullptr) {
      envelope.share->add_queued(envelope);
    }
    if (is_over(envelope)) {
      drop_excess(envelope);
    }
  }
  return true;
}

bool OverflowPolicy::merge_into_waiting(const MessageType& type, void* message) noexcept {
  if (queue_.empty()) {
    return false;
  }
  for (Envelope* waiting = newest_;; waiting = waiting->previous) {
    if ((waiting->type == &type || is_same_type(*waiting->type, type)) &&
        rules_.merge(type, waiting, message)) {
      count_one(coalesced_);
      return true;
    }
    if (waiting == queue_.first()) {
      return false;
    }
  }
}

// Drops messages that wait beyond the bounds, oldest first. A message that is still on its way
// counts, so that it will find its place.
void OverflowPolicy::drop_excess(const Envelope& newest) noexcept {
  SenderShare* share = newest.share;
  while (share != nullptr && share->used() > share->limit() && share->oldest_queued() != &newest) {
    drop(*share->oldest_queued());
  }
  while (mailbox_.depth() > mailbox_.credits() && queue_.first() != &newest) {
    drop(static_cast<Envelope&>(*queue_.first()));
  }
}

// It is not the newest.
void OverflowPolicy::drop(Envelope& envelope) noexcept {
  const bool is_first = queue_.first() == &envelope;
  static_cast<Envelope*>(envelope.next)->previous = envelope.previous;
  queue_.take_out_behind(is_first ? nullptr : envelope.previous, envelope);
  count_one(dropped_);
  mailbox_.return_accepted(envelope, Undelivered::kDropped);
}

}  // namespace tandem::detail
