#include "runtime/compute_lane.hpp"

#include "runtime/thread.hpp"
#include "runtime/trace.hpp"

namespace tandem {

ComputeLane::ComputeLane(EventLoop& loop, std::string name, LaneDriver* driver)
    : loop_(loop), name_(std::move(name)), driver_(driver), stop_job_([](Op& op) noexcept {
        static_cast<Job&>(op).lane->stopping_.store(true, std::memory_order_relaxed);
      }) {
  stop_job_.lane = this;
  if (driver_ == nullptr) {
    thread_ = thread::start(name_, 0, 1, [this] { work(); });
  }
}

ComputeLane::~ComputeLane() {
  if (driver_ == nullptr) {
    submit(stop_job_);
    thread_.join();
  }
}

double ComputeLane::busy_s() const noexcept {
  return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) * 1e-9;
}

ComputeLane::BusyTime::BusyTime(std::atomic<std::int64_t>& account_ns) noexcept
    : account_ns_(account_ns), start_ns_(trace::detail::now_ns()) {}

ComputeLane::BusyTime::~BusyTime() {
  account_ns_.fetch_add(trace::detail::now_ns() - start_ns_, std::memory_order_relaxed);
}

void ComputeLane::check_loop() const noexcept {
  TANDEM_CHECK_FOR(name_.c_str(), EventLoop::current_or_null() == &loop_,
                   "a lane is awaited on the loop that it was made for: send that loop a message");
}

void ComputeLane::submit(Job& job) noexcept {
  if (inbox_.push(job)) {
    wakes_.wake();
  }
  if (driver_ != nullptr) {
    driver_->work_there(*this);
  }
}

bool ComputeLane::run_next() {
  inbox_.take_all(driven_);
  Op* const op = driven_.pop();
  if (op == nullptr) {
    return false;
  }
  op->run(*op);
  return true;
}

void ComputeLane::work() {
  thread::set_name(name_);
  thread::set_punctual();
  OpQueue<Op> queue;
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (!inbox_.take_all(queue)) {
      expected_.wait(
          trace::detail::now_ns, [this] { return !inbox_.seems_empty(); },
          [&](std::int64_t until_ns) { return sleep(queue, until_ns); },
          {.cpu_now_ns = thread::cpu_now_ns});
      inbox_.take_all(queue);
    }
    const int team = team_.load(std::memory_order_relaxed);
    thread::enter_runtime(team);
    while (Op* op = queue.pop()) {
      const TraceSpan span(static_cast<Job&>(*op).name);  // before the job, which may be gone then
      op->run(*op);
    }
    thread::leave_runtime(team);
  }
}

// True: a job has ended it.
bool ComputeLane::sleep(OpQueue<Op>& queue, std::int64_t until_ns) noexcept {
  sleep_until_woken(inbox_, queue, wakes_, until_ns);
  return !queue.empty() || !inbox_.seems_empty();
}

}  // namespace tandem
