#include "runtime/event_loop.hpp"

#include <algorithm>
#include <csignal>
#include <exception>
#include <thread>

#include <fmt/format.h>

#include "runtime/detail/foreign_wake.hpp"
#include "runtime/detail/loop_link.hpp"
#include "runtime/detail/mailbox/ask_table.hpp"
#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/detail/wake_tap.hpp"
#include "runtime/system/thread_id.hpp"
#include "runtime/thread.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/cpu_relax.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {
namespace {

constexpr int kBlindSpins = 32;

// Rust and Go do so, too. A program that handles SIGPIPE, or wants to end by it, sets that before
// or after this.
void ignore_broken_pipes() noexcept {
  static const bool done = [] {
    struct sigaction now = {};
    if (::sigaction(SIGPIPE, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
        now.sa_handler == SIG_DFL) {
      std::signal(SIGPIPE, SIG_IGN);
    }
    return true;
  }();
  static_cast<void>(done);
}

// Keeps what a plain handler throws until the loop has taken note that it is awake.
struct Sleeper {
  asio::io_context& reactor;
  std::exception_ptr& thrown;
  void restart() { reactor.restart(); }
  void run_one() noexcept {
    try {
      reactor.run_one();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
};

}  // namespace

namespace detail {
TANDEM_NEAR_THREAD_LOCAL EventLoop* t_loop = nullptr;
constinit thread_local RunningNames t_running{};
TANDEM_NEAR_THREAD_LOCAL std::int64_t t_loop_time_ns = 0;
constinit thread_local WakeTap* t_wake_tap = nullptr;

bool LoopLink::post(Op& op) noexcept {
  const std::lock_guard lock(mutex_);
  if (loop_ == nullptr) {
    return false;
  }
  loop_->post_from_any_thread(op);
  return true;
}
}  // namespace detail

EventLoop::Running::Running(EventLoop& loop)
    : loop_(loop),
      outer_loop_(std::exchange(detail::t_loop, &loop)),
      outer_recycler_(FrameRecycler::install(&loop.recycler_)),
      outer_name_(detail::t_running),
      outer_time_ns_(std::exchange(detail::t_loop_time_ns, loop.now().time_since_epoch().count())) {
  detail::t_running.set({});
  TANDEM_CHECK_FOR(loop.given_up_, loop.given_up_ == nullptr,
                   "this actor was destroyed by an exception while its handler ran, so its loop "
                   "cannot run on: make it by scope.start<A>(), which ends it first");
  const std::uint64_t here = this_thread_id();
  std::uint64_t expected = 0;
  TANDEM_CHECK_FOR(loop.options_.name.c_str(),
                   loop.running_thread_.compare_exchange_strong(expected, here),
                   "a loop runs once at a time");
  loop.owner_thread_.store(here, std::memory_order_relaxed);
  thread::enter_runtime();
}

EventLoop::Running::~Running() {
  thread::leave_runtime();
  loop_.running_thread_.store(0);
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
      owner_thread_(this_thread_id()),
      reactor_(1),  // one thread runs it
      reactor_work_(reactor_.get_executor()),
      alarm_(reactor_),
      expected_(options_.spin) {
  ignore_broken_pipes();
}

EventLoop::~EventLoop() {
  link_->cut();
  link_->release();
  if (given_up_ == nullptr) {
    Running running(*this);
    take_arrived();
    while (Op* op = queue_.pop()) {
      op->run(*op);
      inbox_.take_all(queue_);
    }
  }
  detail::report_unseen("a function posted to loop", options_.name.c_str(), thrown_);
  // A producer that ended a sleep may still be inside wake(): it touches this object until it is
  // counted.
  while (!wakes_.settled()) {
    std::this_thread::yield();
  }
}

bool EventLoop::on_loop_thread() const noexcept {
  const std::uint64_t running = running_thread_.load(std::memory_order_relaxed);
  return running == 0 || running == this_thread_id();
}

bool EventLoop::is_owned_here() const noexcept {
  return owner_thread_.load(std::memory_order_relaxed) == this_thread_id();
}

void EventLoop::check_thread() const noexcept {
  TANDEM_CHECK_FOR(options_.name.c_str(), on_loop_thread(),
                   "this belongs to the loop's thread; from others: post(function), try_send(), "
                   "spawn(), Completion");
}

void EventLoop::note_thrown(std::exception_ptr error) noexcept {
  if (thrown_ == nullptr) {
    thrown_ = std::move(error);
  } else {
    detail::report_unseen("a function posted to loop", options_.name.c_str(), error);
  }
}

void EventLoop::set_message_tap(MessageTap* tap) noexcept {
  registry_.message_tap = tap;
  for (detail::Mailbox* mailbox = registry_.first_mailbox; mailbox != nullptr;
       mailbox = mailbox->next_on_loop()) {
    mailbox->update_tap();
  }
}

void EventLoop::run_until(const bool& done) {
  // Afterwards a foreign loop looks here again, for what comes then.
  struct AtEnd {
    detail::ForeignWake* foreign;
    ~AtEnd() {
      if (foreign != nullptr) {
        foreign->ring();
      }
    }
  };
  const AtEnd at_end{foreign_.get()};
  if (timers_run_by_themselves_) {
    alarm_.prepare();
  }
  looked_ns_ = real_now_ns();
  detail::t_running.count = 0;
  look_around();  // or runs that end in their first batch would never come to it
  while (!done) {
    run_batch(done);
    if (done) {
      break;
    }
    if (thrown_ != nullptr) [[unlikely]] {
      std::rethrow_exception(std::exchange(thrown_, nullptr));
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

// Awaits are stamped with this time from here on.
void EventLoop::note_time() noexcept {
  detail::t_loop_time_ns =
      clock_ == &Clock::real() ? looked_ns_ : clock_->now().time_since_epoch().count();
}

std::size_t EventLoop::run_ready(std::size_t most) {
  Running running(*this);
  try {
    return run_what_is_ready(most);
  } catch (...) {
    if (foreign_ != nullptr) {
      foreign_->ring();  // the rest is to be done, and nothing else says so
    }
    throw;
  }
}

std::size_t EventLoop::run_what_is_ready(std::size_t most) {
  take_arrived();
  if (!timers_.empty()) {
    timers_.take_due(now(), queue_);
  }
  if (timers_run_by_themselves_) {
    reactor_.restart();
    reactor_.poll();
    pollers_.poll();
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
  if (foreign_ != nullptr) {
    watch_for_foreign_loop();
  }
  if (thrown_ != nullptr) {
    std::rethrow_exception(std::exchange(thrown_, nullptr));
  }
  return count;
}

int EventLoop::ready_descriptor() {
  if (foreign_ == nullptr) {
    foreign_ = std::make_unique<detail::ForeignWake>(reactor_);
    foreign_seen_.store(foreign_.get(), std::memory_order_release);
    foreign_->ring();  // the first run_ready() sees to the rest
  }
  return foreign_->descriptor();
}

// As before a sleep: what comes from now on makes the descriptor ready; what is there does so now.
void EventLoop::watch_for_foreign_loop() {
  if (timers_run_by_themselves_) {
    reactor_.restart();
    reactor_.poll();  // of operations that have ended since, the descriptor knows nothing
    if (!pollers_.empty()) {
      pollers_.poll_before_sleep();
    }
    alarm_.set(timer_due_ns());
  }
  fall_asleep();
  if (!asleep_) {
    foreign_->ring();
  }
}

void EventLoop::fall_asleep() {
  if (has_ready_ops()) {
    return;
  }
  reactor_.restart();
  asleep_ = planted(Bug::kSleepsUnseen) || inbox_.try_sleep();
}

void EventLoop::stop_sleeping() noexcept {
  if (std::exchange(asleep_, false) && inbox_.wake_up(queue_)) {
    wakes_.owe();
  }
}

void EventLoop::take_arrived() noexcept {
  stop_sleeping();
  inbox_.take_all(queue_);
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

// Where a short wait is likely, first without a look at the clock: an answer from another core is
// there sooner than that. Pollers have to be asked for theirs.
void EventLoop::wait_for_work() {
  if (pollers_.empty() && expected_.is_short() && thread::spare_cpus() >= 0) {
    for (int i = 0; i < kBlindSpins; ++i) {
      if (!inbox_.seems_empty()) {
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
  if (next_deadline() != TimePoint::max() && clock_->skip_to(timers_.next_deadline())) {
    note_time();
    timers_.take_due(now(), queue_);
    return;
  }
  expected_.wait(
      real_now_ns, [this] { return something_came(); },
      [this](std::int64_t until_ns) { return sleep_in_reactor(until_ns); },
      {.counted = true, .deadline_ns = timer_due_ns(), .cpu_now_ns = thread::cpu_now_ns});
  looked_ns_ = real_now_ns();  // the wait itself is no stall
  note_time();
}

// The spin looks here.
bool EventLoop::something_came() noexcept {
  return !inbox_.seems_empty() || (!pollers_.empty() && pollers_.poll());
}

// On the real clock; an injected one is moved by its owner, who wakes the loop.
std::int64_t EventLoop::timer_due_ns() const noexcept {
  return timers_run_by_themselves_ ? next_deadline().time_since_epoch().count()
                                   : ExpectedWait::kNever;
}

// True: something else than `until_ns` has ended the sleep.
bool EventLoop::sleep_in_reactor(std::int64_t until_ns) {
  if (!pollers_.empty() && pollers_.poll_before_sleep()) {
    return true;
  }
  // Pollers may run the reactor, whose alarm then is used up, and arm timers.
  alarm_.set(std::min(until_ns, timer_due_ns()));
  std::exception_ptr thrown;
  Sleeper sleeper{reactor_, thrown};
  if (sleep_until_woken(inbox_, queue_, sleeper)) {
    wakes_.owe();
  }
  if (thrown != nullptr) [[unlikely]] {
    std::rethrow_exception(thrown);
  }
  return !queue_.empty() || real_now_ns() < until_ns;
}

// stop() is Asio's cheapest interruption (one epoll_ctl, no allocation); the loop restarts the
// context before each use.
void EventLoop::wake() noexcept {
  if (detail::t_wake_tap != nullptr) [[unlikely]] {
    detail::t_wake_tap->woken(*this);
  }
  if (detail::ForeignWake* const foreign = foreign_seen_.load(std::memory_order_acquire)) {
    foreign->ring();
  }
  reactor_.stop();
  wakes_.paid();
}

}  // namespace tandem
