#include "runtime/event_loop.hpp"

#include <thread>

#include <asio/executor_work_guard.hpp>
#include <asio/steady_timer.hpp>
#include <fmt/format.h>

#include "runtime/ask_table.hpp"
#include "runtime/loop_link.hpp"
#include "runtime/mailbox.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/cpu_relax.hpp"
#include "runtime/util/thread.hpp"

namespace tandem {
namespace {

constinit thread_local EventLoop* t_current = nullptr;
constinit thread_local char t_identity = 0;  // its address names the thread

constexpr std::int64_t kSpinMaxNs = 50'000;
constexpr std::int64_t kSpinMinNs = 1'000;

std::int64_t real_now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

namespace detail {
constinit thread_local RunningName t_running{};

bool LoopLink::post(Op& op) noexcept {
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr) {
    return false;
  }
  loop_->post_from_any_thread(op);
  return true;
}
}  // namespace detail

// The one Asio timer that ends a sleep when the loop's earliest timer is due. Armed lazily: it may fire too early, which
// only costs a round, so that timers armed and disarmed while the loop is awake never touch it.
struct EventLoop::ReactorTimer {
  explicit ReactorTimer(asio::io_context& context) : work(context.get_executor()), timer(context) {}

  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::steady_timer timer;
  bool armed = false;
  TimePoint deadline;
};

EventLoop::Running::Running(EventLoop& loop)
    : loop_(loop),
      outer_loop_(std::exchange(t_current, &loop)),
      outer_recycler_(FrameRecycler::install(&loop.recycler_)),
      outer_name_(std::exchange(detail::t_running, {})) {
  const void* expected = nullptr;
  TANDEM_CHECK(loop.running_thread_.compare_exchange_strong(expected, &t_identity),
               "a loop runs once at a time");
  thread::enter_runtime();
}

EventLoop::Running::~Running() {
  thread::leave_runtime();
  loop_.running_thread_.store(nullptr);
  FrameRecycler::install(outer_recycler_);
  t_current = outer_loop_;
  detail::t_running = outer_name_;
}

EventLoop::EventLoop(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? options_.clock : &Clock::real()),
      asks_(std::make_unique<detail::AskTable>()),
      link_(new detail::LoopLink(*this)),
      reactor_(1),  // one thread runs it
      reactor_timer_(std::make_unique<ReactorTimer>(reactor_)),
      spin_budget_ns_(kSpinMaxNs) {}

EventLoop::~EventLoop() {
  link_->cut();
  link_->release();
  {
    Running running(*this);
    inbox_.take_all(queue_);
    while (Op* op = queue_.pop()) {
      op->run(*op);
      inbox_.take_all(queue_);
    }
  }
  // A producer that ended a sleep may still be inside wake(): it touches this object until it is counted.
  while (wakes_done_.load(std::memory_order_acquire) != wakes_owed_) {
    std::this_thread::yield();
  }
}

EventLoop& EventLoop::current() noexcept {
  TANDEM_CHECK(t_current != nullptr, "no event loop runs on this thread");
  return *t_current;
}

EventLoop* EventLoop::current_or_null() noexcept { return t_current; }

bool EventLoop::on_loop_thread() const noexcept {
  const void* running = running_thread_.load(std::memory_order_relaxed);
  return running == nullptr || running == &t_identity;
}

void EventLoop::set_mail_tap(MailTap* tap) noexcept {
  registry_.mail_tap = tap;
  for (detail::Mailbox* mailbox = registry_.first_mailbox; mailbox != nullptr;
       mailbox = mailbox->next_on_loop()) {
    mailbox->update_tap();
  }
}

void EventLoop::run_until(const bool& done) {
  int rounds = 0;
  while (!done) {
    run_batch(done);
    if (done) {
      return;
    }
    inbox_.take_all(queue_);
    if (!timers_.empty()) {
      timers_.take_due(now(), queue_);
    }
    if (++rounds >= kPollEvery) {
      rounds = 0;
      reactor_.restart();
      reactor_.poll();
      pollers_.poll();
    }
    if (queue_.empty()) {
      wait_for_work();
    }
  }
}

void EventLoop::run_batch(const bool& done) {
  // Only every kWatched resumptions is the clock read; the names say who ran in a group that took too long.
  constexpr int kWatched = kBatch / 8;
  detail::RunningName ran[kWatched];
  const std::int64_t limit_ns = options_.stall_limit.count();
  std::int64_t start_ns = limit_ns > 0 ? real_now_ns() : 0;
  for (int left = kBatch; left > 0; left -= kWatched) {
    int count = 0;
    while (count < kWatched && !done) {
      Op* op = queue_.pop();
      if (op == nullptr) {
        break;
      }
      synchronous_left_ = kSynchronousLimit;
      detail::t_running = {};
      op->run(*op);
      ran[count++] = detail::t_running;
    }
    if (limit_ns > 0 && count > 0) {
      const std::int64_t end_ns = real_now_ns();
      if (end_ns - start_ns > limit_ns) [[unlikely]] {
        note_stall(end_ns - start_ns, {ran, static_cast<std::size_t>(count)});
      }
      start_ns = end_ns;
    }
    if (count < kWatched) {
      return;
    }
  }
}

void EventLoop::note_stall(std::int64_t ns, std::span<const detail::RunningName> ran) {
  ++stalls_;
  std::string names;
  for (const detail::RunningName& one : ran) {
    if (one.name != nullptr || one.where.line() != 0) {
      const std::string name = fmt::format("{} ({}:{})", one.name != nullptr ? one.name : "task",
                                           one.where.file_name(), one.where.line());
      if (names.find(name) == std::string::npos) {
        names += (names.empty() ? "" : ", ") + name;
      }
    }
  }
  last_stall_ = fmt::format("loop \"{}\" was held for {:.1f} ms by {}", options_.name,
                            static_cast<double>(ns) * 1e-6, names.empty() ? "an operation" : names);
  if (trace::enabled()) {
    trace::instant(Name(std::string_view(last_stall_)));
  }
}

void EventLoop::wait_for_work() {
  if (!pollers_.empty() && pollers_.poll()) {
    return;
  }
  if (!timers_.empty() && clock_->skip_to(timers_.next_deadline())) {
    timers_.take_due(now(), queue_);
    return;
  }
  if (!spin_for_inbox()) {
    sleep_in_reactor();
  }
}

bool EventLoop::spin_for_inbox() noexcept {
  const bool allowed =
      options_.spin == Spin::kAlways || (options_.spin == Spin::kAuto && thread::spare_cpus() > 0);
  if (!allowed) {
    return false;
  }
  std::int64_t limit_ns = real_now_ns() + spin_budget_ns_;
  if (!timers_.empty() && clock_->runs_by_itself()) {
    limit_ns = std::min<std::int64_t>(limit_ns, timers_.next_deadline().time_since_epoch().count());
  }
  do {
    for (int i = 0; i < 32; ++i) {
      if (!inbox_.seems_empty()) {
        spin_budget_ns_ = std::min(kSpinMaxNs, spin_budget_ns_ * 2);
        return true;
      }
      cpu_relax();
    }
    if (!pollers_.empty() && pollers_.poll()) {
      return true;
    }
  } while (real_now_ns() < limit_ns);
  spin_budget_ns_ = std::max(kSpinMinNs, spin_budget_ns_ / 2);
  return false;
}

void EventLoop::sleep_in_reactor() {
  arm_reactor_timer();
  if (!pollers_.empty() && pollers_.poll_before_sleep()) {
    return;
  }
  // restart() comes before the tag is set: a wake() for this sleep comes after it and is not forgotten; one for an earlier
  // sleep that arrives late only makes run_one() return early.
  reactor_.restart();
  if (!inbox_.try_sleep()) {
    return;
  }
  reactor_.run_one();
  if (inbox_.wake_up(queue_)) {
    ++wakes_owed_;
  }
}

void EventLoop::arm_reactor_timer() {
  if (timers_.empty() || !clock_->runs_by_itself()) {
    return;
  }
  ReactorTimer& reactor_timer = *reactor_timer_;
  const TimePoint deadline = timers_.next_deadline();
  if (reactor_timer.armed && reactor_timer.deadline <= deadline) {
    return;
  }
  reactor_timer.armed = true;
  reactor_timer.deadline = deadline;
  reactor_timer.timer.expires_at(
      std::chrono::time_point_cast<asio::steady_timer::duration>(deadline));
  reactor_timer.timer.async_wait([&reactor_timer](const asio::error_code& error) {
    if (!error) {
      reactor_timer.armed = false;
    }
  });
}

// stop() is Asio's cheapest interruption (one epoll_ctl, no allocation); the loop restarts the context before each use.
void EventLoop::wake() noexcept {
  reactor_.stop();
  // release: the loop's destructor goes on only after this call has stopped touching the loop.
  wakes_done_.fetch_add(1, std::memory_order_release);
}

}  // namespace tandem
