// runtime/detail/mailbox/overflow_policy.hpp — handles messages to a full mailbox: WhenFull
// (mailbox_options.hpp), and the actor's rule for merging messages.
//
// A message that will replace another, or be merged into it, is accepted beyond the bound; up to
// twice the bound may be on the way until the mailbox's loop has dropped or merged the excess.
// Invariant: all envelopes of the queue came through place(), and `previous` of each is the one
// before it; `previous` of the first is stale, because the actor has taken that envelope since.
// Internal.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/detail/mailbox/message.hpp"
#include "runtime/mailbox_options.hpp"

namespace tandem::detail {

/// The mailbox's answer to a message that asks for room.
enum class Admit : unsigned char {
  kReserved,  // accepted, with a credit or without: Mailbox::deliver() has to follow
  kMerged,    // merged into a waiting message: done
  kWait,      // full: the message may wait in the wait queue
  kRefused,   // full, and the policy is to reject
  kClosed,
};

class OverflowPolicy {
 public:
  /// The actor's rule for kCoalesce: merges the message at `newer` into `waiting` and returns true,
  /// or returns false. With null pointers it returns whether the type has a rule.
  using Merge = bool (*)(const MessageType& type, Envelope* waiting, void* newer) noexcept;
  /// Returns the address of the message in an envelope.
  using Payload = void* (*)(Envelope& envelope) noexcept;

  struct Rules {
    WhenFull when_full = WhenFull::kWait;
    Merge merge = nullptr;
    Payload payload = nullptr;
  };

  /// `queue` is the mailbox's queue of accepted envelopes.
  OverflowPolicy(const Rules& rules, Mailbox& mailbox, OpQueue<Op>& queue) noexcept;
  OverflowPolicy(const OverflowPolicy&) = delete;
  OverflowPolicy& operator=(const OverflowPolicy&) = delete;

  /// Decides about a message that found no credit. Any thread.
  Admit admit(const MessageType& type, void* message, SenderShare* share) noexcept;
  /// True if accepted envelopes have to pass place().
  [[nodiscard]] bool looks_at_arrivals() const noexcept {
    return rules_.when_full == WhenFull::kDropOldest || rules_.when_full == WhenFull::kCoalesce;
  }
  /// Puts an accepted envelope into the queue and returns true, or merges it into a waiting one and
  /// returns false. Drops the excess. The mailbox's loop.
  bool place(Envelope& envelope) noexcept;

  /// Any thread.
  [[nodiscard]] std::uint64_t dropped() const noexcept {
    return dropped_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t coalesced() const noexcept {
    return coalesced_.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] bool is_over(const Envelope& newest) const noexcept;
  bool merge_into_waiting(const MessageType& type, void* message) noexcept;
  void drop_excess(const Envelope& newest) noexcept;
  void drop(Envelope& envelope) noexcept;

  const Rules rules_;
  Mailbox& mailbox_;
  OpQueue<Op>& queue_;
  Envelope* newest_ = nullptr;  // in the queue, unless that is empty
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::uint64_t> coalesced_{0};
};

}  // namespace tandem::detail
