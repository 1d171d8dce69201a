// runtime/stop_token.hpp — asks work to stop, and lets the work notice it.
//
// A StopSource belongs to one loop. A token that outlives its source keeps its last answer, and
// stops nothing any more.
// Stopping is a request: the operations in flight are told, and complete (an await that was stopped
// throws Stopped). Nothing is destroyed while it is in use.
// Thread rule: the loop's thread; StopHandle::request_stop() from any thread, by a post to the
// loop.
//
//   co_await sleep_for(1h, scope.stop_token());   // throws Stopped after scope.request_stop()
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "runtime/detail/frame_recycler.hpp"
#include "runtime/detail/op.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

class EventLoop;

/// An await that was told to stop throws it. It is no error: a scope that asked for the stop
/// ignores it.
class Stopped : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "stopped"; }
};

/// An intrusive list node of an object that is to be told of the stop. It is told at most once, and
/// has left the list by then.
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

/// A callback that may outlive the source, which waiting coroutines may not. When the source is
/// destroyed, the callback leaves the list and `on_end` is called.
struct LooseStopCallback : StopCallback {
  LooseStopCallback(OnStop function, OnStop end) noexcept
      : StopCallback(&LooseStopCallback::tell), then(function), on_end(end) {}
  /// The on_stop of all loose callbacks, by which a source recognises them.
  static void tell(StopCallback& callback) noexcept;

  OnStop then;
  OnStop on_end;
};

namespace detail {
/// The state that a source shares with its tokens, counted.
struct StopState {
  bool requested = false;
  bool orphaned = false;        // the source is gone
  StopState* parent = nullptr;  // its stop is this one's, too; null: none, or both are stopped
  std::atomic<std::uint32_t> references{1};
  StopCallback* first = nullptr;

  static void* operator new(std::size_t bytes) { return FrameRecycler::allocate(bytes); }
  static void operator delete(void* block, std::size_t bytes) noexcept {
    FrameRecycler::deallocate(block, bytes);
  }
  void add_reference() noexcept { references.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    // acq_rel: what others did with the state is done before it goes.
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }
};
}  // namespace detail

class StopToken {
 public:
  /// A token that never stops anything.
  constexpr StopToken() noexcept = default;
  /// Internal: the token of a source.
  explicit StopToken(detail::StopState* state) noexcept : state_(state) { state_->add_reference(); }
  constexpr StopToken(const StopToken& other) noexcept : state_(other.state_) {
    if (state_ != nullptr) {
      state_->add_reference();
    }
  }
  constexpr StopToken(StopToken&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  constexpr StopToken& operator=(StopToken other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  constexpr ~StopToken() {
    if (state_ != nullptr) {
      state_->release();
    }
  }

  [[nodiscard]] bool stop_requested() const noexcept {
    return state_ != nullptr && state_->requested;
  }
  /// False for a token that never stops anything.
  [[nodiscard]] bool can_stop() const noexcept { return state_ != nullptr; }
  void throw_if_stopped() const {
    if (stop_requested()) {
      throw Stopped();
    }
  }
  /// True if a stop of the source of `other` will stop this one, too (and has not done so yet).
  [[nodiscard]] bool stops_with(const StopToken& other) const noexcept {
    const detail::StopState* at = state_;
    while (at != nullptr && at != other.state_) {
      at = at->parent;
    }
    return at != nullptr;
  }
  /// Has `callback` called at the stop request; calls it at once if stop was requested before.
  void link(StopCallback& callback) const noexcept {
    if (state_ == nullptr || state_->requested || state_->orphaned) {
      if (stop_requested()) {
        callback.on_stop(callback);
      }
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
  friend class StopSource;
  detail::StopState* state_ = nullptr;
};

/// Requests a stop from any thread; harmless when the source, or its loop, is gone already.
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
  StopSource() : StopSource(StopToken()) {}
  /// Stops when `parent` stops, too.
  explicit StopSource(StopToken parent);
  /// No coroutine may wait on one of its tokens any more. Sources below it live on, and it does not
  /// stop them.
  ~StopSource();
  StopSource(const StopSource&) = delete;
  StopSource& operator=(const StopSource&) = delete;

  [[nodiscard]] StopToken token() noexcept { return StopToken(state_); }
  [[nodiscard]] bool stop_requested() const noexcept { return state_->requested; }
  /// Tells all that are linked, once. The coroutines go on later, through the loop's queue.
  void request_stop() noexcept;
  [[nodiscard]] StopHandle handle(EventLoop& loop);
  /// Unlinks all callbacks without telling them: for a source whose coroutines never go on.
  void forget_all() noexcept;

 private:
  struct FromParent : LooseStopCallback {
    explicit FromParent(StopSource& child) noexcept;
    StopSource& child;
  };

  detail::StopState* state_;
  FromParent from_parent_;
  std::shared_ptr<StopHandle::Shared> shared_;
};

}  // namespace tandem
