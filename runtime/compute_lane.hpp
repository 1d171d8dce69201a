// runtime/compute_lane.hpp — one thread that runs plain functions in order; all ATen and autograd
// of a rank runs on it.
//
// Thread rule: run() on the loop's thread; the function runs on the lane's. Its guards (NoGrad,
// stream, device) live and die inside it.
// Cancel rule: cannot be cancelled: the await lasts until the function has returned.
//
//   ComputeLane lane(loop, "compute");
//   double loss = co_await lane.run([&] { return forward(batch); });
#pragma once

#include <atomic>
#include <concepts>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "runtime/completion.hpp"
#include "runtime/detail/mpsc_inbox.hpp"
#include "runtime/expected_wait.hpp"
#include "runtime/util/name.hpp"
#include "runtime/util/wake_counter.hpp"

namespace tandem {

class ComputeLane;

/// Takes the place of a lane's thread (in the simulator). The lane calls work_there() when a
/// function was queued; the driver then calls run_next() on the loop's thread, at a time of its
/// choice.
class LaneDriver {
 public:
  virtual ~LaneDriver() = default;
  virtual void work_there(ComputeLane& lane) = 0;
};

class ComputeLane {
 public:
  /// With a `driver`, which must outlive the lane, no thread is made and the driver runs the
  /// functions.
  explicit ComputeLane(EventLoop& loop, std::string name = "compute", LaneDriver* driver = nullptr);
  /// Waits until the queued functions have run (with a driver it does not wait).
  ~ComputeLane();
  ComputeLane(const ComputeLane&) = delete;
  ComputeLane& operator=(const ComputeLane&) = delete;

  /// Awaitable: runs fn() on the lane's thread after the functions queued before it, and returns
  /// its value or rethrows its exception. The function is queued when it is awaited. `fn` is copied
  /// (or moved) into the awaiting coroutine's frame and destroyed there. Traces show `name`.
  template <std::invocable Fn>
  [[nodiscard]] auto run(Fn fn, Name name = "lane job") {
    return Awaiter<Fn>(*this, std::move(fn), name);
  }

  /// Sets the number of threads with which the lane's functions compute (1 by default); idle
  /// threads of the runtime leave that many CPUs to them. Any thread.
  void set_team(int threads) noexcept { team_.store(threads, std::memory_order_relaxed); }

  /// Time spent in functions that have returned, in seconds. Any thread.
  [[nodiscard]] double busy_s() const noexcept;

  /// For a LaneDriver: runs the function that was queued first; returns false if none is queued.
  bool run_next();

 private:
  // Queued to the lane; its run() is called there.
  struct Job : Op {
    explicit Job(Run run_function) noexcept : Op(run_function) {}
    ComputeLane* lane = nullptr;
    Name name = "end of the lane";
  };
  template <class Fn>
  class Awaiter;
  // Adds the time it lives to the lane's busy time, before the awaiter learns that the function is
  // done.
  class BusyTime {
   public:
    explicit BusyTime(std::atomic<std::int64_t>& account_ns) noexcept;
    ~BusyTime();

   private:
    std::atomic<std::int64_t>& account_ns_;
    std::int64_t start_ns_;
  };

  void check_loop() const noexcept;
  void submit(Job& job) noexcept;
  void work();
  bool sleep(OpQueue<Op>& queue, std::int64_t until_ns) noexcept;

  EventLoop& loop_;
  std::string name_;
  LaneDriver* driver_;
  MpscInbox inbox_;
  OpQueue<Op> driven_;  // for a driver: jobs taken from the inbox
  WakeCounter wakes_;
  ExpectedWait expected_;  // of its thread
  std::atomic<int> team_{1};
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> busy_ns_{0};
  Job stop_job_;
  std::thread thread_;
};

template <class Fn>
class ComputeLane::Awaiter {
 public:
  using Value = std::invoke_result_t<Fn&>;
  static constexpr const char* kAwaitName = "compute lane";
  Awaiter(ComputeLane& lane, Fn fn, Name name) : job_(lane, std::move(fn)) { job_.name = name; }

  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) noexcept {
    job_.lane->check_loop();
    job_.done.await_suspend(coroutine);
    job_.lane->submit(job_);
  }
  Value await_resume() { return job_.done.await_resume(); }

 private:
  struct FnJob : Job {
    FnJob(ComputeLane& lane_in, Fn fn_in)
        : Job([](Op& op) noexcept {
            auto& self = static_cast<FnJob&>(op);
            // Once it is completed, the frame that `self` lives in may be gone.
            self.done.set_from([&self]() -> Value {
              const BusyTime busy(self.lane->busy_ns_);
              return self.fn();
            });
          }),
          fn(std::move(fn_in)),
          done(lane_in.loop_) {
      this->lane = &lane_in;
    }
    Fn fn;
    Completion<Value> done;
  };
  FnJob job_;
};

}  // namespace tandem
