// runtime/stop_token.hpp — asking work to stop, and noticing it.
//
// A StopSource belongs to one loop; tokens are plain pointers to it and must not outlive it.
// Stopping is a request: what is in flight is told, and completes (an await that was stopped throws
// Stopped). Nothing is destroyed under anyone.
// Thread rule: of the loop's thread; StopHandle::request_stop() from any thread, by a post to the
// loop.
//
//   co_await sleep_for(1h, scope.stop_token());   // throws Stopped after scope.request_stop()
#pragma once

#include <atomic>
#include <exception>
#include <memory>

#include "runtime/detail/op.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

class EventLoop;

/// What an await throws that was told to stop. Not an error: a scope that asked for it ignores it.
class Stopped : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "stopped"; }
};

/// An intrusive list node of what wants to be told. It is told at most once, and is out of the
/// list by then.
struct StopCallback {
  using OnStop = void (*)(StopCallback&) noexcept;
  explicit StopCallback(OnStop function) noexcept : on_stop(function) {}
  ~StopCallback() { unlink(); }
  StopCallback(const StopCallback&) = delete;
  StopCallback& operator=(const StopCallback&) = delete;

  void unlink() noexcept {
    if (link_to_this != nullptr) {
      *link_to_this = next;
      if (next != nullptr) {
        next->link_to_this = link_to_this;
      }
      link_to_this = nullptr;
    }
  }

  OnStop on_stop;
  StopCallback* next = nullptr;
  StopCallback** link_to_this = nullptr;  // the pointer that points here; null: not in a list
};

namespace detail {
struct StopState {
  bool requested = false;
  StopCallback* first = nullptr;
};
}  // namespace detail

class StopToken {
 public:
  /// A token that never stops anything.
  StopToken() noexcept = default;
  explicit StopToken(detail::StopState* state) noexcept : state_(state) {}

  [[nodiscard]] bool stop_requested() const noexcept {
    return state_ != nullptr && state_->requested;
  }
  /// False: of a token that never stops anything.
  [[nodiscard]] bool can_stop() const noexcept { return state_ != nullptr; }
  void throw_if_stopped() const {
    if (stop_requested()) {
      throw Stopped();
    }
  }
  /// `callback` is called at the request. If stop was requested before, it is not called: ask
  /// first.
  void link(StopCallback& callback) const noexcept {
    if (state_ == nullptr || state_->requested) {
      return;
    }
    if (planted(Bug::kStopNotTold) && state_->first != nullptr && state_->first->next != nullptr) {
      return;
    }
    callback.next = state_->first;
    callback.link_to_this = &state_->first;
    if (callback.next != nullptr) {
      callback.next->link_to_this = &callback.next;
    }
    state_->first = &callback;
  }

 private:
  detail::StopState* state_ = nullptr;
};

/// Requests a stop from any thread; harmless when the source is gone already. The loop outlives the
/// handle.
class StopHandle {
 public:
  void request_stop() const noexcept;

 private:
  friend class StopSource;
  struct Shared;
  explicit StopHandle(std::shared_ptr<Shared> shared) noexcept : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;
};

class StopSource {
 public:
  StopSource() noexcept : StopSource(StopToken()) {}
  /// Stops when `parent` stops, too.
  explicit StopSource(StopToken parent) noexcept;
  /// No coroutine may wait on a token any more.
  ~StopSource();
  StopSource(const StopSource&) = delete;
  StopSource& operator=(const StopSource&) = delete;

  [[nodiscard]] StopToken token() noexcept { return StopToken(&state_); }
  [[nodiscard]] bool stop_requested() const noexcept { return state_.requested; }
  /// Tells all that wait, once. What they do about it they do later, through the loop's
  /// queue.
  void request_stop() noexcept;
  [[nodiscard]] StopHandle handle(EventLoop& loop);

 private:
  struct FromParent : StopCallback {
    explicit FromParent(StopSource& child) noexcept;
    StopSource& child;
  };

  detail::StopState state_;
  FromParent from_parent_;
  std::shared_ptr<StopHandle::Shared> shared_;
};

}  // namespace tandem
