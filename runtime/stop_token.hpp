// runtime/stop_token.hpp — asking work to stop, and noticing it.
//
// A StopSource belongs to one loop. A token that outlives it says what it said last, and stops
// nothing any more.
// Stopping is a request: what is in flight is told, and completes (an await that was stopped throws
// Stopped). Nothing is destroyed under anyone.
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

/// An await throws it when it was told to stop. It is no error: a scope that asked for it ignores
/// it.
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

/// One that may outlive the source, which coroutines that wait may not: when the source dies, it is
/// out of the list, and `on_end` is called.
struct LooseStopCallback : StopCallback {
  LooseStopCallback(OnStop function, OnStop end) noexcept
      : StopCallback(&LooseStopCallback::tell), then(function), on_end(end) {}
  /// The on_stop of all of them, by which a source knows them.
  static void tell(StopCallback& callback) noexcept;

  OnStop then;
  OnStop on_end;
};

namespace detail {
/// The state that a source shares with its tokens, counted.
struct StopState {
  bool requested = false;
  bool orphaned = false;        // the source is gone
  StopState* parent = nullptr;  // whose stop is this one's, too; null: none, or both are stopped
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
  /// Internal: of a source.
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
  /// False: of a token that never stops anything.
  [[nodiscard]] bool can_stop() const noexcept { return state_ != nullptr; }
  void throw_if_stopped() const {
    if (stop_requested()) {
      throw Stopped();
    }
  }
  /// A stop of what `other` is of stops this, too (and has not done so yet).
  [[nodiscard]] bool stops_with(const StopToken& other) const noexcept {
    const detail::StopState* at = state_;
    while (at != nullptr && at != other.state_) {
      at = at->parent;
    }
    return at != nullptr;
  }
  /// `callback` is called at the request; within this, if stop was requested before.
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
  /// No coroutine may wait on a token any more. Sources below it live on, and are not stopped by
  /// it.
  ~StopSource();
  StopSource(const StopSource&) = delete;
  StopSource& operator=(const StopSource&) = delete;

  [[nodiscard]] StopToken token() noexcept { return StopToken(state_); }
  [[nodiscard]] bool stop_requested() const noexcept { return state_->requested; }
  /// Tells all that wait, once. They act on it later, through the loop's queue.
  void request_stop() noexcept;
  [[nodiscard]] StopHandle handle(EventLoop& loop);
  /// Those that wait are not told any more: for one whose coroutines never go on.
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
