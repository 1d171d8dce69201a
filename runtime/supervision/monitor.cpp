#include "runtime/supervision/monitor.hpp"

namespace tandem {
namespace detail {

Envelope& Watchers::take_envelope(WatchNode& node, const ExitReason& reason) noexcept {
  Envelope& envelope = *std::exchange(node.envelope, nullptr);
  node.fill(envelope, reason);
  return envelope;
}

void Watchers::add(WatchNode& node) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!told_) {
      node.next = first_;
      node.link_to_this = &first_;
      if (first_ != nullptr) {
        first_->link_to_this = &node.next;
      }
      first_ = &node;
      return;
    }
  }
  node.watcher->deliver_control(take_envelope(node, reason_));  // the reason is final by now
}

bool Watchers::remove(WatchNode& node) noexcept {
  const std::lock_guard lock(mutex_);
  if (node.link_to_this == nullptr) {
    return false;
  }
  *node.link_to_this = node.next;
  if (node.next != nullptr) {
    node.next->link_to_this = node.link_to_this;
  }
  node.link_to_this = nullptr;
  return true;
}

void Watchers::tell(const ExitReason& reason) noexcept {
  OpQueue<Op> near;  // of Envelope
  {
    const std::lock_guard lock(mutex_);
    if (told_) {
      return;
    }
    told_ = true;
    reason_ = reason;
    while (WatchNode* node = first_) {
      first_ = node->next;
      node->link_to_this = nullptr;
      Envelope& envelope = take_envelope(*node, reason_);
      if (node->watcher->is_on_this_thread()) {
        node->watcher->add_reference();
        envelope.target = node->watcher;
        near.push(envelope);
      } else {
        node->watcher->deliver_control(envelope);
      }
    }
  }
  // A tap may sit on the way to a mailbox of this thread, and do what it likes: not under the lock.
  while (Op* op = near.pop()) {
    Mailbox* watcher = static_cast<Envelope*>(op)->target;
    watcher->deliver_control(static_cast<Envelope&>(*op));
    watcher->release();
  }
}

}  // namespace detail

Watch::Watch(detail::Mailbox* target, detail::Mailbox* watcher) {
  if (watcher == nullptr) {
    return;
  }
  node_ = std::make_unique<detail::WatchNode>();
  node_->envelope = detail::make_in_pool<detail::MessageEnvelope<Down>>(Down{"no actor", {}});
  node_->fill = [](detail::Envelope& envelope, const ExitReason& reason) noexcept {
    static_cast<detail::MessageEnvelope<Down>&>(envelope).message = Down{reason.actor, reason};
  };
  watcher->add_reference();
  node_->watcher = watcher;
  if (target == nullptr) {
    watcher->deliver_control(*std::exchange(node_->envelope, nullptr));
    return;
  }
  target->add_reference();
  node_->target = target;
  target->watchers().add(*node_);
}

bool Watch::unwatch() noexcept {
  const std::unique_ptr<detail::WatchNode> node = std::move(node_);
  if (node == nullptr) {
    return false;
  }
  bool withdrawn = false;
  if (node->target != nullptr) {
    withdrawn = node->target->watchers().remove(*node);
    node->target->release();
  }
  node->watcher->release();
  if (withdrawn) {
    detail::destroy_in_pool(static_cast<detail::MessageEnvelope<Down>&>(*node->envelope));
  }
  return withdrawn;
}

}  // namespace tandem
