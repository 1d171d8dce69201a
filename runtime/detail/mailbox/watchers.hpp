// runtime/detail/mailbox/watchers.hpp — the watches that wait for the end of one actor: the list in
// its mailbox that monitor.hpp fills.
//
// It uses a lock, because watching is rare and any thread may watch. The lock is held while a Down
// is posted to another loop, so that a withdrawn watch sends nothing. Internal.
#pragma once

#include <mutex>

#include "runtime/exit_reason.hpp"

namespace tandem::detail {

class Mailbox;
struct Envelope;

/// One watch. It belongs to its Watch, and is linked into the list while the target lives.
struct WatchNode {
  using Fill = void (*)(Envelope& envelope, const ExitReason& reason) noexcept;
  Mailbox* target = nullptr;   // counted
  Mailbox* watcher = nullptr;  // counted
  // made ahead, so that the end of an actor needs no memory; null once sent
  Envelope* envelope = nullptr;
  Fill fill = nullptr;
  WatchNode* next = nullptr;
  WatchNode** link_to_this = nullptr;
};

class Watchers {
 public:
  Watchers() noexcept = default;
  Watchers(const Watchers&) = delete;
  Watchers& operator=(const Watchers&) = delete;

  /// Any thread. Sends at once if the actor has ended.
  void add(WatchNode& node) noexcept;
  /// Any thread. Returns false if the Down was sent already.
  bool remove(WatchNode& node) noexcept;
  /// Sends `reason` to all watchers; called when the actor has ended. Only the first call counts.
  void tell(const ExitReason& reason) noexcept;

 private:
  static Envelope& take_envelope(WatchNode& node, const ExitReason& reason) noexcept;

  std::mutex mutex_;
  WatchNode* first_ = nullptr;
  bool told_ = false;
  ExitReason reason_;
};

}  // namespace tandem::detail
