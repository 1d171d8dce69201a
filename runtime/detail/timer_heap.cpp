#include "runtime/detail/timer_heap.hpp"

#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

void TimerHeap::place(std::size_t position, const Entry& entry) noexcept {
  heap_[position] = entry;
  entry.timer->position = position;
}

void TimerHeap::sift_up(std::size_t position, const Entry& entry) noexcept {
  while (position > 0) {
    const std::size_t parent = (position - 1) / 2;
    if (!(entry < heap_[parent])) {
      break;
    }
    place(position, heap_[parent]);
    position = parent;
  }
  place(position, entry);
}

void TimerHeap::sift_down(std::size_t position, const Entry& entry) noexcept {
  for (;;) {
    std::size_t child = 2 * position + 1;
    if (child >= heap_.size()) {
      break;
    }
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) {
      ++child;
    }
    if (!(heap_[child] < entry)) {
      break;
    }
    place(position, heap_[child]);
    position = child;
  }
  place(position, entry);
}

void TimerHeap::arm(TimerOp& timer, TimePoint deadline) {
  TANDEM_CHECK(!timer.armed(), "a timer is armed once at a time");
  const Entry entry{deadline, next_sequence_++, &timer};
  heap_.push_back(entry);
  sift_up(heap_.size() - 1, entry);
}

void TimerHeap::disarm(TimerOp& timer) noexcept {
  if (!timer.armed()) {
    return;
  }
  const std::size_t position = timer.position;
  timer.position = TimerOp::kNotArmed;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (position == heap_.size()) {
    return;
  }
  // The last entry fills the hole; it may have to move either way.
  if (position > 0 && last < heap_[(position - 1) / 2]) {
    sift_up(position, last);
  } else {
    sift_down(position, last);
  }
}

void TimerHeap::take_due(TimePoint now, OpQueue<Op>& queue) noexcept {
  while (!heap_.empty() && heap_.front().deadline <= now) {
    TimerOp& timer = *heap_.front().timer;
    disarm(timer);
    queue.push(timer);
    if (planted(Bug::kTimerFiresTwice) && next_sequence_ % 16 == 0) {
      arm(timer, now + Duration(1));
    }
  }
}

}  // namespace tandem
