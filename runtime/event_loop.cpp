#include "runtime/event_loop.hpp"

#include <thread>

#include <asio/executor_work_guard.hpp>
#include <asio/steady_timer.hpp>
#include <fmt/format.h>

#include "runtime/detail/loop_link.hpp"
#include "runtime/detail/mailbox/ask_table.hpp"
#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/thread.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/cpu_relax.hpp"

namespace tandem {
namespace {

constexpr int kBlindSpins = 32;
constinit thread_local char t_identity = 0;  // its address names the thread

std::int64_t real_now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

}  // namespace

namespace detail {
constinit thread_local EventLoop* t_loop = nullptr;
constinit thread_local RunningNames t_running{};
constinit thread_local std::int64_t t_loop_time_ns = 0;

bool LoopLink::post(Op& op) noexcept {
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr) {
    return false;
  }
  loop_->post_from_any_thread(op);
  return true;
}
}  // namespace detail

// The one Asio timer that ends a sleep when the loop's earliest timer is due. Armed lazily: it may
// fire too early, which only costs a round, so that timers armed and disarmed while the loop is
// awake never touch it.
struct EventLoop::ReactorTimer {
  explicit ReactorTimer(asio::io_context& context) : work(context.get_executor()), timer(context) {}

  asio::executor_work_guard<asio::io_context::executor_type> work;
  asio::steady_timer timer;
  bool armed = false;
  TimePoint deadline;
};

EventLoop::Running::Running(EventLoop& loop)
    : loop_(loop),
      outer_loop_(std::exchange(detail::t_loop, &loop)),
      outer_recycler_(FrameRecycler::install(&loop.recycler_)),
      outer_name_(detail::t_running),
      outer_time_ns_(std::exchange(detail::t_loop_time_ns, loop.now().time_since_epoch().count())) {
  detail::t_running.set({});
  const void* expected = nullptr;
  TANDEM_CHECK(loop.running_thread_.compare_exchange_strong(expected, &t_identity),
               "a loop runs once at a time");
  thread::enter_runtime();
}

EventLoop::Running::~Running() {
  thread::leave_runtime();
  loop_.running_thread_.store(nullptr);
  FrameRecycler::install(outer_recycler_);
  detail::t_loop = outer_loop_;
  detail::t_running.set(outer_name_);
  detail::t_loop_time_ns = outer_time_ns_;
}

EventLoop::EventLoop(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? options_.clock : &Clock::real()),
      timers_run_by_themselves_(clock_->runs_by_itself()),
      asks_(std::make_unique<detail::AskTable>()),
      link_(new detail::LoopLink(*this)),
      reactor_(1),  // one thread runs it
      reactor_timer_(std::make_unique<ReactorTimer>(reactor_)) {}

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
  // A producer that ended a sleep may still be inside wake(): it touches this object until it is
  // counted.
  while (!wakes_.settled()) {
    std::this_thread::yield();
  }
}

bool EventLoop::on_loop_thread() const noexcept {
  const void* running = running_thread_.load(std::memory_order_relaxed);
  return running == nullptr || running == &t_identity;
}

void EventLoop::set_message_tap(MessageTap* tap) noexcept {
  registry_.message_tap = tap;
  for (detail::Mailbox* mailbox = registry_.first_mailbox; mailbox != nullptr;
       mailbox = mailbox->next_on_loop()) {
    mailbox->update_tap();
  }
}

void EventLoop::run_until(const bool& done) {
  looked_ns_ = real_now_ns();
  detail::t_running.count = 0;
  while (!done) {
    run_batch(done);
    if (done) {
      break;
    }
    inbox_.take_all(queue_);
    // Time on an injected clock moves when its owner moves it, so its timers are looked at in each
    // round.
    if (look_due_ || !timers_run_by_themselves_) {
      look_around();
    }
    if (queue_.empty()) {
      wait_for_work();
    }
  }
  look_at_clock();
}

// What awaits are stamped with from here on.
void EventLoop::note_time() noexcept {
  detail::t_loop_time_ns =
      clock_ == &Clock::real() ? looked_ns_ : clock_->now().time_since_epoch().count();
}

std::size_t EventLoop::run_ready(std::size_t most) {
  Running running(*this);
  inbox_.take_all(queue_);
  if (!timers_.empty()) {
    timers_.take_due(now(), queue_);
  }
  std::size_t count = 0;
  for (; count < most; ++count) {
    Op* op = queue_.pop();
    if (op == nullptr) {
      break;
    }
    synchronous_left_ = kSynchronousLimit;
    op->run(*op);
  }
  return count;
}

void EventLoop::run_batch(const bool& done) {
  for (int left = kBatch; left > 0; --left) {
    Op* op = queue_.pop();
    if (op == nullptr) {
      return;
    }
    synchronous_left_ = kSynchronousLimit;
    detail::t_running.set({});
    op->run(*op);
    if (done) {
      return;
    }
    if (--until_look_ == 0) [[unlikely]] {
      look_at_clock();
    }
  }
}

// Ends the group of operations that a stall would be blamed on.
void EventLoop::look_at_clock() {
  until_look_ = kWatched;
  look_due_ = true;
  const std::int64_t now_ns = real_now_ns();
  const std::int64_t limit_ns = options_.stall_limit.count();
  if (limit_ns > 0 && now_ns - looked_ns_ > limit_ns) [[unlikely]] {
    note_stall(now_ns - looked_ns_);
  }
  looked_ns_ = now_ns;
  detail::t_running.count = 0;
  note_time();
}

void EventLoop::look_around() {
  look_due_ = false;
  if (!timers_run_by_themselves_) {
    note_time();
  }
  if (!timers_.empty()) {
    timers_.take_due(now(), queue_);
  }
  if (--looks_until_poll_ <= 0 || looked_ns_ - polled_ns_ > kPollEveryNs) {
    looks_until_poll_ = kPollEvery;
    polled_ns_ = looked_ns_;
    reactor_.restart();
    reactor_.poll();
    pollers_.poll();
  }
}

void EventLoop::note_stall(std::int64_t ns) {
  ++stalls_;
  stall_ns_ = ns;
  stall_names_ = detail::t_running;
  if (trace::enabled()) {
    trace::instant(Name(last_stall()));
  }
}

std::string EventLoop::last_stall() const {
  if (stalls_ == 0) {
    return {};
  }
  std::string names;
  for (const detail::RunningName& one : stall_names_.kept()) {
    const std::string name = fmt::format("{} ({}:{})", one.name != nullptr ? one.name : "task",
                                         one.where.file_name(), one.where.line());
    if (names.find(name) == std::string::npos) {
      names += (names.empty() ? "" : ", ") + name;
    }
  }
  return fmt::format("loop \"{}\" was held for {:.1f} ms by {}", options_.name,
                     static_cast<double>(stall_ns_) * 1e-6, names.empty() ? "an operation" : names);
}

// First without a look at the clock (an answer from another core is there sooner than that), then
// up to the budget.
void EventLoop::wait_for_work() {
  const bool spin =
      options_.spin == Spin::kAlways ||
      (options_.spin == Spin::kAuto && thread::spare_cpus() >= 0 && spin_.worth_trying());
  if (spin) {
    for (int i = 0; i < kBlindSpins; ++i) {
      if (!inbox_.seems_empty()) {
        spin_.found();
        return;
      }
      cpu_relax();
    }
  }
  look_at_clock();
  look_around();
  if (!queue_.empty() || (!pollers_.empty() && pollers_.poll())) {
    return;
  }
  if (!timers_.empty() && clock_->skip_to(timers_.next_deadline())) {
    note_time();
    timers_.take_due(now(), queue_);
    return;
  }
  if (!spin || !spin_for_inbox()) {
    sleep_in_reactor();
  }
  looked_ns_ = real_now_ns();  // the wait itself is no stall
  note_time();
}

bool EventLoop::spin_for_inbox() noexcept {
  std::int64_t limit_ns = looked_ns_ + spin_.budget_ns();
  if (!timers_.empty() && timers_run_by_themselves_) {
    limit_ns = std::min<std::int64_t>(limit_ns, timers_.next_deadline().time_since_epoch().count());
  }
  do {
    for (int i = 0; i < kBlindSpins; ++i) {
      if (!inbox_.seems_empty()) {
        spin_.found();
        return true;
      }
      cpu_relax();
    }
    if (!pollers_.empty() && pollers_.poll()) {
      spin_.found();
      return true;
    }
  } while (real_now_ns() < limit_ns);
  spin_.missed();
  return false;
}

void EventLoop::sleep_in_reactor() {
  arm_reactor_timer();
  if (!pollers_.empty() && pollers_.poll_before_sleep()) {
    return;
  }
  if (sleep_until_woken(inbox_, queue_, reactor_)) {
    wakes_.owe();
  }
}

void EventLoop::arm_reactor_timer() {
  if (timers_.empty() || !timers_run_by_themselves_) {
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

// stop() is Asio's cheapest interruption (one epoll_ctl, no allocation); the loop restarts the
// context before each use.
void EventLoop::wake() noexcept {
  reactor_.stop();
  wakes_.paid();
}

}  // namespace tandem
