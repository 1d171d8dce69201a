#include "runtime/supervision/monitor.hpp"

namespace tandem {
namespace detail {

Mail& Watchers::take_mail(WatchNode& node, const ExitReason& reason) noexcept {
  Mail& mail = *std::exchange(node.mail, nullptr);
  node.fill(mail, reason);
  return mail;
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
  node.watcher->deliver_control(take_mail(node, reason_));  // the reason is final by now
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
  OpQueue<Op> near;  // of Mail
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
      Mail& mail = take_mail(*node, reason_);
      if (node->watcher->is_on_this_thread()) {
        node->watcher->add_reference();
        mail.target = node->watcher;
        near.push(mail);
      } else {
        node->watcher->deliver_control(mail);
      }
    }
  }
  // A tap may sit on the way to a mailbox of this thread, and do what it likes: not under the lock.
  while (Op* op = near.pop()) {
    Mailbox* watcher = static_cast<Mail*>(op)->target;
    watcher->deliver_control(static_cast<Mail&>(*op));
    watcher->release();
  }
}

}  // namespace detail

Watch::Watch(detail::Mailbox* target, detail::Mailbox* watcher) {
  if (watcher == nullptr) {
    return;
  }
  node_ = std::make_unique<detail::WatchNode>();
  node_->mail = detail::make_in_pool<detail::MessageMail<Down>>(Down{"nobody", {}});
  node_->fill = [](detail::Mail& mail, const ExitReason& reason) noexcept {
    static_cast<detail::MessageMail<Down>&>(mail).message = Down{reason.actor, reason};
  };
  watcher->add_reference();
  node_->watcher = watcher;
  if (target == nullptr) {
    watcher->deliver_control(*std::exchange(node_->mail, nullptr));
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
    detail::destroy_in_pool(static_cast<detail::MessageMail<Down>&>(*node->mail));
  }
  return withdrawn;
}

}  // namespace tandem
