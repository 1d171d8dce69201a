// actors/memory/ring_queue.hpp — a first-in, first-out queue over one vector that grows and never
// shrinks. Actors queue requests in it, because after warm-up a push does not allocate, unlike
// std::deque's.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/util/check.hpp"

namespace tandem {

/// T is default constructible and movable; after a pop the vector keeps the moved-from T until that
/// position is used again.
template <class T>
class RingQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  [[nodiscard]] T& front() {
    TANDEM_CHECK(size_ > 0, "an empty queue has no front");
    return ring_[head_];
  }

  void push(T value) {
    if (size_ == ring_.size()) {
      grow();
    }
    ring_[(head_ + size_) % ring_.size()] = std::move(value);
    ++size_;
  }

  T pop() {
    T value = std::move(front());
    head_ = (head_ + 1) % ring_.size();
    --size_;
    return value;
  }

 private:
  void grow() {
    std::vector<T> larger(ring_.empty() ? 8 : ring_.size() * 2);
    for (std::size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(ring_[(head_ + i) % ring_.size()]);
    }
    ring_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> ring_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace tandem
