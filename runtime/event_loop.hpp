// runtime/event_loop.hpp — the scheduler of one thread, on which all coroutines of a rank run.
//
// It has an intrusive run queue and inbox, timers on an injected clock, and Asio's io_context as
// the reactor in which it sleeps.
// Thread rule: run() on one thread at a time, which is then the loop's thread;
// post_from_any_thread() and post(function) from any thread (the loop must outlive the call);
// everything else on the loop's thread, or on the owner's while the loop does not run. Several
// threads may run it one after the other.
// Cancel rule: run() returns when its task is done; other tasks and actors stay suspended,
// completions are queued, and the next run() continues with them. The same holds if an exception of
// a plain Asio handler, or of a posted function, leaves run() before its task is done. The first
// loop of a program ignores SIGPIPE, unless the program handles it: a broken pipe is an error of
// the write.
// Fairness: at most kBatch operations run before the inbox gets its turn, and before timers and
// (every kPollEvery looks, or kPollEveryNs) the reactor do. The clock is read once per kWatched
// operations, not per round: a round may be one message. An idle loop sleeps in the reactor, or
// spins while work is expected soon (expected_wait.hpp).
//
//   EventLoop loop({.name = "rank 0"});
//   int answer = loop.run([](int x) -> Task<int> { co_await sleep_for(1ms); co_return x; }, 42);
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include "runtime/clock.hpp"
#include "runtime/detail/alarm.hpp"
#include "runtime/detail/loop_registry.hpp"
#include "runtime/detail/mpsc_inbox.hpp"
#include "runtime/detail/op.hpp"
#include "runtime/detail/root_task.hpp"
#include "runtime/detail/timer_heap.hpp"
#include "runtime/expected_wait.hpp"
#include "runtime/poller.hpp"
#include "runtime/task.hpp"
#include "runtime/util/build.hpp"

namespace tandem {

class EventLoop;

namespace detail {
class AskTable;
class ForeignWake;
class LoopLink;
extern TANDEM_NEAR_THREAD_LOCAL EventLoop* t_loop;
}  // namespace detail

class EventLoop {
 public:
  struct Options {
    std::string name = "loop";
    Clock* clock = nullptr;  // null: the real one; must outlive the loop
    Spin spin = spin_setting();
    // a longer resumption is reported; 0: never
    Duration stall_limit = std::chrono::milliseconds(10);
  };

  EventLoop() : EventLoop(Options()) {}
  explicit EventLoop(Options options);
  /// Runs operations that are still queued (late messages, replies). No task may be left: join
  /// their scopes first.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Makes factory(args...), a Task, and runs the loop on this thread until it is done; returns its
  /// value or rethrows.
  template <class Factory, class... Args>
    requires TaskFactory<Factory, Args...>
  TaskResult<Factory, Args...> run(Factory factory, Args... args) {
    using Value = TaskResult<Factory, Args...>;
    Running running(*this);
    detail::MainResult<Value> result{.loop = this};
    detail::RootTask root = detail::run_root<Value, Factory, Args...>(factory, std::move(args)...);
    root.set_name("main");
    take_arrived();  // what this thread sent before comes before what the task sends
    post(root.start());
    const Main main(*this, root.promise(), result.done, &result);
    run_until(result.done);
    return result.outcome.take();
  }

  /// Runs at most `most` operations that are ready now (due timers', sockets' and files' too) and
  /// never waits; returns how many. For a loop inside a foreign one, and for code that steps
  /// several loops on one thread in turn (runtime/sim): with an injected clock the reactor gets no
  /// turn.
  std::size_t run_ready(std::size_t most);
  /// For a loop inside a foreign one: returns a descriptor that can be read (poll, epoll, a
  /// QSocketNotifier) as soon as run_ready() has something to do: due timers, sockets, files, what
  /// other threads post. Each run_ready() makes it ready anew. The foreign loop's own code
  /// calls run_ready() after it has spawned or posted something here. The first call makes the
  /// descriptor; throws Error if none is left.
  int ready_descriptor();
  /// For code that steps several loops: marks a loop with nothing to do as asleep, so that a post
  /// wakes it; until stop_sleeping() or run_ready() only that wake makes it ready. Does nothing if
  /// operations are ready.
  void fall_asleep();
  void stop_sleeping() noexcept;
  /// The loop that runs on this thread.
  static EventLoop& current() noexcept {
    TANDEM_CHECK(detail::t_loop != nullptr, "no event loop runs on this thread");
    return *detail::t_loop;
  }
  static EventLoop* current_or_null() noexcept { return detail::t_loop; }

  /// Queues `op`; it runs in the order of posting. Never allocates.
  void post(Op& op) noexcept {
    check_here();
    queue_.push(op);
  }
  /// Does what post() does, for code that runs as one of the loop's operations or has just checked
  /// the thread.
  void post_here(Op& op) noexcept {
    if constexpr (kDebugChecks) {
      check_here();
    }
    queue_.push(op);
  }
  /// Ends the process with a message if the calling thread is not the loop's.
  void check_here() const noexcept {
    if (detail::t_loop != this) [[unlikely]] {
      check_thread();
    }
  }

  /// Any thread: calls `function` on the loop's thread, once. run() rethrows its exception. If the
  /// loop is destroyed first, the destructor calls it.
  template <std::invocable Function>
  void post(Function function) {
    static_assert(!AnyTask<std::invoke_result_t<Function&>>,
                  "a Task that a posted function returns would never run: scope.spawn() it");
    post_from_any_thread(*new FunctionOp<Function>(*this, std::move(function)));
  }

  /// Queues `op` from any thread, and wakes the loop if it sleeps. Never allocates.
  void post_from_any_thread(Op& op) noexcept {
    if (inbox_.push(op)) [[unlikely]] {
      wake();
    }
  }

  void arm(TimerOp& timer, TimePoint deadline) { timers_.arm(timer, deadline); }
  /// Does nothing if the timer is not armed (any more): a timer that is due is in the queue, and
  /// will run.
  void disarm(TimerOp& timer) noexcept { timers_.disarm(timer); }
  /// Removes a timer that is armed or due; it will not run and may be destroyed. Searches the queue
  /// if it is due.
  void take_back(TimerOp& timer) noexcept {
    if (timer.armed()) {
      timers_.disarm(timer);
    } else {
      (void)queue_.take_out(timer);
    }
  }

  /// Start and stop polling `poller`; each does nothing if that is so already.
  void add_poller(Poller& poller) noexcept { pollers_.add(poller); }
  void remove_poller(Poller& poller) noexcept { pollers_.remove(poller); }

  /// An awaitable that could go on at once asks this first. Returns false after kSynchronousLimit
  /// times in a row: then the coroutine has to go through the queue.
  [[nodiscard]] bool may_continue_synchronously() noexcept { return --synchronous_left_ > 0; }

  /// Returns the time of the earliest timer; TimePoint::max() if no timer is armed.
  [[nodiscard]] TimePoint next_deadline() const noexcept {
    return timers_.empty() ? TimePoint::max() : timers_.next_deadline();
  }
  [[nodiscard]] std::size_t armed_timers() const noexcept { return timers_.size(); }
  /// True on the thread that runs the loop, and on any thread while the loop does not run.
  [[nodiscard]] bool on_loop_thread() const noexcept;
  /// True on the thread that runs the loop; while the loop does not run, true on the thread that
  /// ran it last (or made it). For other threads the loop may begin to run at any moment.
  [[nodiscard]] bool is_owned_here() const noexcept;
  [[nodiscard]] asio::io_context& reactor() noexcept { return reactor_; }
  [[nodiscard]] Clock& clock() const noexcept { return *clock_; }
  [[nodiscard]] TimePoint now() const noexcept { return clock_->now(); }
  [[nodiscard]] const std::string& name() const noexcept { return options_.name; }
  [[nodiscard]] detail::AskTable& asks() noexcept { return *asks_; }
  [[nodiscard]] detail::LoopLink& link() const noexcept { return *link_; }
  /// Sets the tap, to which every message into a mailbox of this loop goes instead
  /// (message_tap.hpp); null removes it.
  void set_message_tap(MessageTap* tap) noexcept;
  [[nodiscard]] MessageTap* message_tap() const noexcept { return registry_.message_tap; }
  [[nodiscard]] detail::LoopRegistry& registry() noexcept { return registry_; }
  /// True while a thread runs the loop.
  [[nodiscard]] bool is_running() const noexcept {
    return running_thread_.load(std::memory_order_relaxed) != 0;
  }
  /// Removes `op` from the queue, which it searches; returns false if it is not there.
  bool take_back(Op& op) noexcept { return queue_.take_out(op); }
  /// Marks the loop as unusable: an exception has destroyed the actor of this name inside of its
  /// own handler.
  void give_up(const char* actor) noexcept { given_up_ = actor; }
  [[nodiscard]] bool is_given_up() const noexcept { return given_up_ != nullptr; }
  /// True if operations are queued to run on this thread (for code that would otherwise occupy it).
  [[nodiscard]] bool has_ready_ops() const noexcept {
    return !queue_.empty() || (asleep_ ? reactor_.stopped() : !inbox_.seems_empty());
  }
  /// The number of resumptions that took longer than stall_limit, since the loop was made.
  [[nodiscard]] std::uint64_t stalls() const noexcept { return stalls_; }
  [[nodiscard]] std::string last_stall() const;

 private:
  static constexpr int kBatch = 256;
  static constexpr int kWatched = detail::RunningNames::kKept;
  static constexpr int kPollEvery = 64;
  static constexpr std::int64_t kPollEveryNs = 50'000;
  static constexpr int kSynchronousLimit = 128;

  // While it lives, this thread runs this loop; loops may nest (a test runs one inside another's
  // task).
  class Running {
   public:
    explicit Running(EventLoop& loop);
    ~Running();

   private:
    EventLoop& loop_;
    EventLoop* outer_loop_;
    FrameRecycler* outer_recycler_;
    detail::RunningName outer_name_;
    std::int64_t outer_time_ns_;
  };

  // The task that run() drives, while run() waits for it.
  class Main {
   public:
    Main(EventLoop& loop, detail::RootTask::promise_type& promise, const bool& done,
         void* result) noexcept
        : loop_(loop), promise_(promise), done_(done) {
      promise.result = result;
      loop.registry_.main = &promise;
    }
    ~Main() {
      loop_.registry_.main = nullptr;
      if (!done_) {
        promise_.result = nullptr;
      }
    }
    Main(const Main&) = delete;
    Main& operator=(const Main&) = delete;

   private:
    EventLoop& loop_;
    detail::RootTask::promise_type& promise_;
    const bool& done_;
  };

  template <class Function>
  struct FunctionOp : Op {
    FunctionOp(EventLoop& loop_in, Function function_in)
        : Op(&FunctionOp::call), loop(loop_in), function(std::move(function_in)) {}
    static void call(Op& op) noexcept {
      const std::unique_ptr<FunctionOp> self(static_cast<FunctionOp*>(&op));
      try {
        self->function();
      } catch (...) {
        self->loop.note_thrown(std::current_exception());
      }
    }
    EventLoop& loop;
    Function function;
  };

  void check_thread() const noexcept;
  std::size_t run_what_is_ready(std::size_t most);
  void note_thrown(std::exception_ptr error) noexcept;
  void take_arrived() noexcept;
  void run_until(const bool& done);
  void run_batch(const bool& done);
  void look_at_clock();
  void look_around();
  void note_time() noexcept;
  void wait_for_work();
  bool something_came() noexcept;
  [[nodiscard]] std::int64_t timer_due_ns() const noexcept;
  bool sleep_in_reactor(std::int64_t until_ns);
  void wake() noexcept;
  void note_stall(std::int64_t ns);
  void watch_for_foreign_loop();

  Options options_;
  Clock* clock_;
  OpQueue<Op> queue_;
  TimerHeap timers_;
  PollerList pollers_;
  bool timers_run_by_themselves_;  // as clock_->runs_by_itself()
  int synchronous_left_ = kSynchronousLimit;
  int until_look_ = kWatched;  // operations until the clock is read
  bool look_due_ = false;      // it was read, and the timers were not looked at since
  int looks_until_poll_ = kPollEvery;
  std::int64_t looked_ns_ = 0;  // when the clock was read
  std::int64_t polled_ns_ = 0;
  FrameRecycler recycler_;
  std::unique_ptr<detail::AskTable> asks_;
  detail::LoopLink* link_;

  MpscInbox inbox_;
  bool asleep_ = false;                           // by fall_asleep()
  std::atomic<std::uint64_t> running_thread_{0};  // this_thread_id() of it; 0: it does not run
  std::atomic<std::uint64_t> owner_thread_;       // runs it, ran it last, or made it
  const char* given_up_ = nullptr;
  std::exception_ptr thrown_;  // thrown by a posted function; run() rethrows it
  asio::io_context reactor_;
  asio::executor_work_guard<asio::io_context::executor_type> reactor_work_;
  detail::Alarm alarm_;
  std::unique_ptr<detail::ForeignWake> foreign_;  // null: no foreign loop waits for this one
  std::atomic<detail::ForeignWake*> foreign_seen_{nullptr};  // the same, for threads that wake
  PendingWakeups wakes_;
  ExpectedWait expected_;
  std::uint64_t stalls_ = 0;
  // of the last stall; last_stall() puts them into words, so that a stall allocates nothing
  std::int64_t stall_ns_ = 0;
  detail::RunningNames stall_names_;
  detail::LoopRegistry registry_;
};

}  // namespace tandem
