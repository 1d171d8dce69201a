// runtime/detail/op.hpp — the unit of work that an event loop schedules, and the queue of such
// units.
//
// An Op is embedded in the object that is to run (a suspended coroutine's awaiter, a message, a
// timer), so that posting never allocates.
// Thread rule: an Op belongs to its poster until run() is called, on the loop's thread; it
// may be in one queue at a time.
// Cancel rule: a posted Op runs; the operation that it stands for handles cancelling.
//
//   struct Hello : Op { Hello() : Op(&Hello::greet) {}  static void greet(Op& op) noexcept; };
//   loop.post(hello);
#pragma once

#include <cstddef>
#include <utility>

namespace tandem {

struct Op {
  using Run = void (*)(Op&) noexcept;

  Op() noexcept = default;
  explicit Op(Run run_function) noexcept : run(run_function) {}
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  Op* next = nullptr;
  Run run = nullptr;
};

/// A first-in, first-out queue; intrusive; for one thread.
template <class Node = Op>
class OpQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }

  void push(Node& node) noexcept {
    node.next = nullptr;
    if (head_ == nullptr) {
      head_ = &node;
    } else {
      tail_->next = &node;
    }
    tail_ = &node;
  }

  /// Removes and returns the oldest node; null if the queue is empty.
  Node* pop() noexcept {
    Node* node = head_;
    if (node != nullptr) {
      head_ = static_cast<Node*>(node->next);
    }
    return node;
  }

  /// Returns the oldest node; null if the queue is empty. The others follow by their `next`.
  [[nodiscard]] Node* first() const noexcept { return head_; }

  /// Removes and returns the oldest node for which `wanted` returns true; null if there is none.
  template <class Predicate>
  Node* take_first(Predicate wanted) noexcept {
    Node* previous = nullptr;
    for (Node* node = head_; node != nullptr;
         previous = node, node = static_cast<Node*>(node->next)) {
      if (wanted(*node)) {
        take_out_behind(previous, *node);
        return node;
      }
    }
    return nullptr;
  }

  /// Takes out `node`, which follows `before` here (null: it is the first). Constant time.
  void take_out_behind(Node* before, Node& node) noexcept {
    if (before == nullptr) {
      head_ = static_cast<Node*>(node.next);
    } else {
      before->next = node.next;
    }
    tail_ = &node == tail_ ? before : tail_;
  }

  /// Takes `node` out; returns false if it is not in this queue. Searches the queue.
  bool take_out(Node& node) noexcept {
    return take_first([&](const Node& at) { return &at == &node; }) != nullptr;
  }

  /// Moves all nodes of `other` to the end of this queue.
  void append(OpQueue& other) noexcept {
    if (other.head_ == nullptr) {
      return;
    }
    if (head_ == nullptr) {
      head_ = other.head_;
    } else {
      tail_->next = other.head_;
    }
    tail_ = other.tail_;
    other.head_ = nullptr;
  }

 private:
  Node* head_ = nullptr;
  Node* tail_ = nullptr;  // valid while head_ is set
};

}  // namespace tandem
