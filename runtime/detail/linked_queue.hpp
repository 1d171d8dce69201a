// runtime/detail/linked_queue.hpp — a first-in, first-out queue with removal from the middle in
// constant time.
//
// It is for nodes that wait and may be stopped, any number at a time. It is intrusive: a node has
// the members `next` (as an Op has) and `previous`.
// Thread rule: one thread. Internal.
#pragma once

namespace tandem {

template <class Node>
class LinkedQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

  void push(Node& node) noexcept {
    node.next = nullptr;
    node.previous = last_;
    if (last_ != nullptr) {
      last_->next = &node;
    } else {
      first_ = &node;
    }
    last_ = &node;
  }

  /// Removes and returns the oldest node; null if the queue is empty.
  Node* pop() noexcept {
    Node* node = first_;
    if (node != nullptr) {
      take_out(*node);
    }
    return node;
  }

  /// Removes `node`, which must be in this queue.
  void take_out(Node& node) noexcept {
    Node* const next = static_cast<Node*>(node.next);
    if (node.previous != nullptr) {
      node.previous->next = next;
    } else {
      first_ = next;
    }
    if (next != nullptr) {
      next->previous = node.previous;
    } else {
      last_ = node.previous;
    }
    node.previous = nullptr;
  }

  /// Returns the oldest node; null if the queue is empty. The others follow by their `next`.
  [[nodiscard]] Node* first() const noexcept { return first_; }

 private:
  Node* first_ = nullptr;
  Node* last_ = nullptr;
};

}  // namespace tandem
