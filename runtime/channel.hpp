// runtime/channel.hpp — a bounded queue between coroutines of one loop; any number may send, any
// number receive.
//
// Values come out in the order of sending, each once; senders wait while it is full, receivers
// while it is empty, both in the order in which they came. With a capacity of 0 every send waits
// for its receive. After close() the remaining values can still be received, then nullopt.
// Thread rule: the loop's thread. Between loops: messages (runtime/address.hpp).
// Cancel rule: a stop ends a waiting send(value, stop) or receive(stop) with Stopped; the value of
// a stopped send is destroyed. If a value was handed to a receiver that is stopped before its turn,
// it goes back to the front of the channel, in its order, so that no stop, deadline or first_of
// loses a value. The channel must outlive its waiters, which its destructor checks.
//
//   while (std::optional<Line> line = co_await lines.receive(stop)) { ... }   // until it is closed
//   std::optional<Line> line = co_await lines.receive(100ms, stop);   // throws DeadlineExceeded
// To receive from the first of several channels that has a value: runtime/select.hpp.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <list>
#include <optional>
#include <type_traits>
#include <utility>

#include "runtime/deadline.hpp"
#include "runtime/detail/choice.hpp"
#include "runtime/detail/wait_list.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

template <class T>
class Channel {
  static_assert(std::is_nothrow_move_constructible_v<T>,
                "what a channel carries moves for certain");

 public:
  class SendAwaiter;
  class ReceiveAwaiter;
  class TimedReceiveAwaiter;
  class Candidate;  // internal: of select()

  explicit Channel(std::size_t capacity) noexcept : capacity_(capacity) {}
  ~Channel() {
    const detail::WaitList& those = senders_.empty() ? receivers_ : senders_;
    TANDEM_CHECK_FOR(those.waiting(), those.empty(),
                     "a channel died while a coroutine waits for it");
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// co_await returns true once the value was sent, false if the channel is closed.
  [[nodiscard]] SendAwaiter send(T value, StopToken stop = {}) noexcept {
    return SendAwaiter(*this, std::move(value), std::move(stop));
  }
  /// co_await returns the next value; nullopt if the channel is closed and empty.
  [[nodiscard]] ReceiveAwaiter receive(StopToken stop = {}) noexcept {
    return ReceiveAwaiter(*this, std::move(stop));
  }
  /// Receives until `deadline`, or for at most `limit` from now; throws DeadlineExceeded if no
  /// value has come by then. A later value stays in the channel.
  [[nodiscard]] TimedReceiveAwaiter receive(TimePoint deadline, StopToken stop = {}) noexcept {
    return TimedReceiveAwaiter(*this, deadline, std::move(stop));
  }
  template <class Rep, class Period>
  [[nodiscard]] TimedReceiveAwaiter receive(std::chrono::duration<Rep, Period> limit,
                                            StopToken stop = {}) noexcept {
    return receive(time_after(EventLoop::current().now(), saturated(limit)), std::move(stop));
  }
  /// Returns false and leaves `value` unchanged if the channel is full or closed.
  [[nodiscard]] bool try_send(T&& value) {
    if (closed_) {
      return false;
    }
    if (auto* receiver = static_cast<ReceiveAwaiter*>(receivers_.take_first())) {
      receiver->value_.emplace(std::move(value));
      receiver->turn_ = ++turns_;
      return true;
    }
    if (size() >= capacity_) {
      return false;
    }
    values_.push_back(std::move(value));
    return true;
  }
  [[nodiscard]] std::optional<T> try_receive() {
    std::uint64_t turn = 0;
    return take(turn);
  }

  /// Refuses further values. Waiting sends return false, and waiting receives nullopt.
  void close() noexcept {
    closed_ = true;
    while (senders_.take_first() != nullptr || receivers_.take_first() != nullptr) {
    }
  }
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  [[nodiscard]] std::size_t size() const noexcept { return values_.size() + returned_.size(); }

 private:
  // A value that came back, and the turn in which it had left the channel.
  struct Returned {
    std::uint64_t turn;
    T value;
  };
  // Does what try_receive() does, and sets `turn` to the value's turn.
  std::optional<T> take(std::uint64_t& turn) {
    std::optional<T> value;
    if (!returned_.empty()) [[unlikely]] {
      turn = returned_.front().turn;
      value.emplace(std::move(returned_.front().value));
      returned_.pop_front();
    } else {
      turn = ++turns_;
      if (!values_.empty()) {
        value.emplace(std::move(values_.front()));
        values_.pop_front();
      }
    }
    if (value && size() >= capacity_) {
      return value;  // no room is free yet: values came back, or none are kept here
    }
    if (auto* sender = static_cast<SendAwaiter*>(senders_.take_first())) {
      sender->sent_ = true;
      if (value) {
        values_.push_back(std::move(sender->value_));
      } else {
        value.emplace(std::move(sender->value_));
      }
    }
    return value;
  }
  // Takes back the value of a receiver that was stopped after the value had been handed over.
  void take_back(T value, std::uint64_t turn) {
    if (auto* receiver = static_cast<ReceiveAwaiter*>(receivers_.take_first())) {
      receiver->value_.emplace(std::move(value));
      receiver->turn_ = turn;
      return;
    }
    auto place = returned_.end();
    while (place != returned_.begin() && std::prev(place)->turn > turn) {
      --place;
    }
    returned_.insert(place, Returned{turn, std::move(value)});
  }

  std::size_t capacity_;
  bool closed_ = false;
  std::deque<T> values_;
  std::list<Returned> returned_;  // before all others, in the order of their turns
  std::uint64_t turns_ = 0;       // values that have left
  detail::WaitList senders_;      // while it is full
  detail::WaitList receivers_;    // while it is empty
};

template <class T>
class Channel<T>::SendAwaiter : detail::ListedWaiter {
 public:
  static constexpr const char* kAwaitName = "room in a channel";
  SendAwaiter(Channel& channel, T value, StopToken stop) noexcept
      : ListedWaiter(std::move(stop)), channel_(channel), value_(std::move(value)) {}

  bool await_ready() {
    if (stop_at_start()) {
      return true;
    }
    sent_ = channel_.senders_.empty() && channel_.try_send(std::move(value_));
    return (sent_ || channel_.closed_) && EventLoop::current().may_continue_synchronously();
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    if (sent_ || channel_.closed_) {
      go_on_later(coroutine);
    } else {
      enter(channel_.senders_, coroutine);
    }
  }
  bool await_resume() const {
    throw_if_stopped();
    return sent_;
  }

 private:
  friend class Channel;
  Channel& channel_;
  T value_;
  bool sent_ = false;
};

template <class T>
class Channel<T>::ReceiveAwaiter : protected detail::ListedWaiter {
 public:
  static constexpr const char* kAwaitName = "a value in a channel";
  ReceiveAwaiter(Channel& channel, StopToken stop) noexcept
      : ListedWaiter(std::move(stop)), channel_(channel) {}

  bool await_ready() {
    if (stop_at_start()) {
      return true;
    }
    value_ = channel_.take(turn_);
    return (value_ || channel_.closed_) && EventLoop::current().may_continue_synchronously();
  }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    if (value_ || channel_.closed_) {
      go_on_later(coroutine);
    } else {
      enter(channel_.receivers_, coroutine);
    }
  }
  std::optional<T> await_resume() {
    if (value_ && stop_requested()) {
      channel_.take_back(std::move(*value_), turn_);
      throw Stopped();
    }
    throw_if_stopped();
    return std::move(value_);
  }

 private:
  friend class Channel;
  Channel& channel_;
  std::optional<T> value_;
  std::uint64_t turn_ = 0;  // of the value
};

template <class T>
class Channel<T>::TimedReceiveAwaiter : public ReceiveAwaiter {
 public:
  TimedReceiveAwaiter(Channel& channel, TimePoint deadline, StopToken stop) noexcept
      : ReceiveAwaiter(channel, std::move(stop)), deadline_(deadline) {}
  TimedReceiveAwaiter(const TimedReceiveAwaiter&) = delete;
  TimedReceiveAwaiter& operator=(const TimedReceiveAwaiter&) = delete;

  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    ReceiveAwaiter::await_suspend(coroutine);
    if (this->is_listed()) {
      timer_.start(EventLoop::current(), deadline_);
    }
  }
  std::optional<T> await_resume() {
    timer_.end();
    if (timer_.late) {
      throw DeadlineExceeded("[channel] nothing came in time");
    }
    return ReceiveAwaiter::await_resume();
  }

 private:
  TimePoint deadline_;
  detail::GiveUpTimer timer_{*this};
};

template <class T>
class Channel<T>::Candidate final : public ReceiveAwaiter, public detail::Candidate {
 public:
  explicit Candidate(std::pair<Channel*, StopToken> from) noexcept
      : ReceiveAwaiter(*from.first, std::move(from.second)) {}
  bool take() override {
    this->value_ = this->channel_.take(this->turn_);
    return this->value_.has_value();
  }
  [[nodiscard]] bool has_value() const noexcept override { return this->value_.has_value(); }
  void give_back() override {
    this->channel_.take_back(std::move(*this->value_), this->turn_);
    this->value_.reset();
  }
  [[nodiscard]] bool closed() const noexcept override { return this->channel_.closed_; }
  detail::WaitList& list() noexcept override { return this->channel_.receivers_; }
  detail::ListedWaiter& waiter() noexcept override { return *this; }
  /// The value that was taken.
  T& value() noexcept { return *this->value_; }
};

}  // namespace tandem
