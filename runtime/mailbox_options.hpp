// runtime/mailbox_options.hpp — the options and the metrics of an actor's mailbox.
//
// The constructor gets the number of messages that may wait (MailboxOptions); the treatment of
// further ones is part of the actor's type, so that the compiler can check it: `static constexpr
// WhenFull kWhenFull = WhenFull::kDropOldest;`.
//
// A sender's share (`address.with_credits(n)`, or `credits_per_sender` for all of them) bounds the
// waiting messages of one sender, on top of the mailbox's own bound; full means that either bound
// is reached. Dropping the oldest then drops that sender's oldest.
// A message with `static constexpr bool kControl = true;` needs no credit, overtakes the others,
// and is also taken by a closed actor until the actor has ended. Up to as many messages again may
// be on their way from other threads into a full mailbox that drops or merges; it is within its
// bound as soon as its loop has seen them.
#pragma once

#include <chrono>
#include <cstdint>

#include "runtime/clock.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

/// The default number of messages that may wait in a mailbox.
inline constexpr std::uint32_t kDefaultCredits = 256;

/// The fate of a message that finds no credit.
enum class WhenFull : unsigned char {
  kWait,        // send() and ask() wait in the wait queue, try_send() says full
  kReject,      // send() and ask() fail at once with MailboxFull, try_send() says full
  kDropOldest,  // accepted; the oldest waiting one is dropped, an asker gets MessageDropped
  // merged into a waiting one by the actor's `static bool coalesce(M& waiting, M&& newer)`, newest
  // first, until that says true (and only then moves from `newer`); if none does: as kWait
  kCoalesce,
};

struct MailboxOptions {
  std::uint32_t credits = kDefaultCredits;
  std::uint32_t credits_per_sender = 0;  // of each address that the actor hands out; 0: no share
  bool measure = false;                  // depth_max and waiting times
};

/// A snapshot. `depth` and the last three counters always count, the others only while measuring.
struct MailboxMetrics {
  std::uint64_t depth = 0;      // accepted and not taken yet, control messages aside
  std::uint64_t depth_max = 0;  // measured
  // measured: messages taken, and their waiting times from sending to being taken
  std::uint64_t waited = 0;
  Duration waited_total{};
  Duration waited_max{};
  std::uint64_t rejected = 0;  // refused as full, by result or by exception
  std::uint64_t dropped = 0;
  std::uint64_t coalesced = 0;
};

/// Thrown by sends and asks to an actor that no longer takes messages.
class ActorClosed : public Error {
 public:
  explicit ActorClosed(const char* actor);
};

/// Thrown if no credit is free and the mailbox's policy is to reject.
class MailboxFull : public Error {
 public:
  MailboxFull(const char* message, const char* actor, std::uint64_t waiting);
};

/// The request was the oldest in a full mailbox, and gave way to a newer message.
class MessageDropped : public Error {
 public:
  MessageDropped(const char* message, const char* actor);
};

}  // namespace tandem
