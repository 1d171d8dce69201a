// runtime/supervision/monitor.hpp — watching an actor by its address: the watcher gets the message
// Down once, when the actor has ended.
//
// The watcher gets Down at once if the actor has ended already. The two may live on different
// loops. A restarted child has not ended: its address lives on. Down needs no credit, so a full
// mailbox does not lose it.
// Thread rule: watch() and unwatch() from any thread; the watcher must have been started before,
// and its loop must live as long as the Watch.
// Cancel rule: nothing is sent after unwatch() or the Watch's destructor (a Down that was sent
// before may arrive).
//
//   struct Guard : Actor<Guard, Down> {
//     explicit Guard(Worker::AddressType worker_in) : worker(std::move(worker_in)) {}
//     void on_start() { watch_ = watch(worker, address()); }
//     void handle(Down down) { fmt::print("{}\n", down.reason.text()); }
//     Worker::AddressType worker;  Watch watch_;
//   };
#pragma once

#include <memory>
#include <utility>

#include "runtime/address.hpp"
#include "runtime/detail/mailbox/watchers.hpp"

namespace tandem {

struct Down {
  static constexpr bool kControl = true;
  const char* name;  // of the actor that was watched
  ExitReason reason;
};

/// The registration of a watcher. Movable; it ends with its last owner.
class Watch {
 public:
  Watch() noexcept = default;
  Watch(Watch&&) noexcept = default;
  Watch& operator=(Watch&& other) noexcept {
    if (this != &other) {
      unwatch();
      node_ = std::move(other.node_);
    }
    return *this;
  }
  ~Watch() { unwatch(); }

  /// Ends the watch. Returns false if the Down was sent already (or there was nothing to watch).
  bool unwatch() noexcept;
  [[nodiscard]] bool watching() const noexcept { return node_ != nullptr; }

 private:
  template <class... Targets, class... Watchers>
    requires detail::OneOf<Down, Watchers...>
  friend Watch watch(const Address<Targets...>& target, const Address<Watchers...>& watcher);
  Watch(detail::Mailbox* target, detail::Mailbox* watcher);

  std::unique_ptr<detail::WatchNode> node_;
};

/// Sends Down to `watcher` when the actor behind `target` has ended; without an actor, at once, as
/// "no actor".
template <class... Targets, class... Watchers>
  requires detail::OneOf<Down, Watchers...>
[[nodiscard]] Watch watch(const Address<Targets...>& target, const Address<Watchers...>& watcher) {
  return Watch(target.mailbox(), watcher.mailbox());
}

}  // namespace tandem
