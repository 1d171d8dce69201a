// runtime/poller.hpp — a source that the loop polls while it is awake: a ring's completions, a
// device's events.
//
// A poller is in the loop's list only while it has something on its way: an empty list costs one
// branch. The loop polls it every few rounds, while the loop spins, and before it sleeps.
// Thread rule: the loop's thread.
// Cancel rule: none; a poller must leave the list before it is destroyed.
#pragma once

#include "runtime/util/check.hpp"

namespace tandem {

class Poller {
 public:
  Poller() noexcept = default;
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// Posts to the loop what is ready; returns true if there was anything. Never waits.
  virtual bool poll() noexcept = 0;
  /// Called when the loop is about to sleep in its reactor: arranges to wake it there, then polls
  /// once more, as poll() does.
  virtual bool poll_before_sleep() noexcept = 0;

 protected:
  ~Poller() { TANDEM_CHECK(!listed_, "a poller leaves its loop before it dies"); }

 private:
  friend class PollerList;
  Poller* next_ = nullptr;
  bool listed_ = false;
};

class PollerList {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

  void add(Poller& poller) noexcept {
    if (!poller.listed_) {
      poller.listed_ = true;
      poller.next_ = first_;
      first_ = &poller;
    }
  }
  void remove(Poller& poller) noexcept {
    Poller** link = &first_;
    while (*link != nullptr && *link != &poller) {
      link = &(*link)->next_;
    }
    if (*link != nullptr) {
      *link = poller.next_;
      poller.listed_ = false;
    }
  }

  bool poll() noexcept { return any(&Poller::poll); }
  bool poll_before_sleep() noexcept { return any(&Poller::poll_before_sleep); }

 private:
  // A poller may leave the list while it is polled.
  bool any(bool (Poller::*look)() noexcept) noexcept {
    bool found = false;
    for (Poller* poller = first_; poller != nullptr;) {
      Poller* const next = poller->next_;
      found |= (poller->*look)();
      poller = next;
    }
    return found;
  }

  Poller* first_ = nullptr;
};

}  // namespace tandem
