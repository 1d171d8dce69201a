// runtime/detail/mailbox/ask_slot.hpp — the asking coroutine's side of an ask: receives the answer,
// a deadline or a stop.
//
// It lives in the asker's frame. The first of answer, deadline and stop removes the slot from the
// loop's AskTable, so that later ones find nothing.
// Thread rule: the asker's loop. Internal.
#pragma once

#include "runtime/detail/mailbox/ask_table.hpp"
#include "runtime/detail/root_task.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/stop_token.hpp"
#include "runtime/util/outcome.hpp"
#include "runtime/util/planted.hpp"

namespace tandem::detail {

struct AskSlotBase {
  enum class End : unsigned char { kNone, kAnswered, kDeadline, kStopped };

  AskSlotBase() noexcept : timer(*this), callback(*this) {}
  ~AskSlotBase() {
    TANDEM_DCHECK(key.generation == 0 || end != End::kNone, "an ask was destroyed in flight");
  }

  /// Enters the table of the current loop, with the coroutine to resume.
  template <class Promise>
  void begin(std::coroutine_handle<Promise> coroutine) {
    loop = &EventLoop::current();
    resume.set(coroutine);
    key = loop->asks().add(*this);
  }
  void limit(TimePoint deadline) { loop->arm(timer, deadline); }
  void stop_with(StopToken token) noexcept { token.link(callback); }

  /// Ends the ask and resumes the coroutine. The slot has left the table, so that nothing else can
  /// end it.
  void finish(End how) noexcept {
    end = how;
    if (!planted(Bug::kTimerNotDisarmed) || how != End::kAnswered) {
      loop->disarm(timer);
    }
    callback.unlink();
    loop->post(resume);
  }

  struct Timer : TimerOp {
    explicit Timer(AskSlotBase& owner) noexcept
        : TimerOp([](Op& op) noexcept { static_cast<Timer&>(op).slot.give_up(End::kDeadline); }),
          slot(owner) {}
    AskSlotBase& slot;
  };
  struct Callback : StopCallback {
    explicit Callback(AskSlotBase& owner) noexcept
        : StopCallback([](StopCallback& self) noexcept {
            static_cast<Callback&>(self).slot.give_up(End::kStopped);
          }),
          slot(owner) {}
    AskSlotBase& slot;
  };

  void give_up(End how) noexcept {
    if (loop->asks().take(key) != nullptr) {
      if (leave_wait_queue != nullptr) {
        leave_wait_queue(*this);
      }
      finish(how);
    }
  }

  EventLoop* loop = nullptr;
  ResumeOp resume;
  AskKey key;
  End end = End::kNone;
  Timer timer;
  Callback callback;
  // set if the request went into a wait queue of this loop, where it may still be
  void (*leave_wait_queue)(AskSlotBase&) noexcept = nullptr;
};

template <class Reply>
struct AskSlot : AskSlotBase {
  Outcome<Reply> outcome;
};

}  // namespace tandem::detail
