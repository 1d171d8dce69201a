#include "runtime/io/signals.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <pthread.h>

namespace tandem {
namespace {

// The process's handling of a signal before the first set waited for it.
struct Handled {
  int sets = 0;
  struct sigaction before = {};
  struct sigaction ours = {};
  bool knows_ours = false;
};

struct AllHandled {
  std::mutex mutex;
  std::map<int, Handled> by_number;
  unsigned forks = 0;            // between the first process and this one
  bool shares_its_pipe = false;  // with the process that it was forked from
};

bool is_same_handler(const struct sigaction& one, const struct sigaction& other) noexcept {
  return (one.sa_flags & SA_SIGINFO) == (other.sa_flags & SA_SIGINFO) &&
         ((one.sa_flags & SA_SIGINFO) != 0 ? one.sa_sigaction == other.sa_sigaction
                                           : one.sa_handler == other.sa_handler);
}

// Nothing here waits for signals yet: what the program did about them before is in place again, and
// none of them is written into the pipe of the other process.
void restore_in_child(AllHandled& all) noexcept {
  for (auto& [number, handled] : all.by_number) {
    struct sigaction now = {};
    if (handled.sets > 0 && ::sigaction(number, nullptr, &now) == 0 &&
        is_same_handler(now, handled.ours)) {
      ::sigaction(number, &handled.before, nullptr);
    }
    handled.sets = 0;
  }
  ++all.forks;
  all.shares_its_pipe = true;
}

AllHandled& all_handled() {
  static AllHandled& all = *new AllHandled;
  static const bool watched = [] {
    return ::pthread_atfork([] { all.mutex.lock(); }, [] { all.mutex.unlock(); },
                            [] {
                              restore_in_child(all);
                              all.mutex.unlock();
                            }) == 0;
  }();
  static_cast<void>(watched);
  return all;
}

// Asio carries signals to their sets by one pipe of the process, which a forked process shares
// until it says so.
asio::io_context& with_own_pipe(asio::io_context& reactor) {
  AllHandled& all = all_handled();
  const std::lock_guard lock(all.mutex);
  if (std::exchange(all.shares_its_pipe, false)) {
    asio::io_context teller(1);
    const asio::signal_set knows_the_pipe(teller);
    teller.notify_fork(asio::execution_context::fork_prepare);
    teller.notify_fork(asio::execution_context::fork_child);
  }
  return reactor;
}

// Asio puts the default action in place for a moment: this thread does not die of it.
class Blocked {
 public:
  explicit Blocked(int number) noexcept {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    ::pthread_sigmask(SIG_BLOCK, &one, &before_);
  }
  ~Blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Signals::Signals(EventLoop& loop, std::initializer_list<int> numbers)
    : loop_(loop), set_(with_own_pipe(loop.reactor())), forks_(all_handled().forks) {
  try {
    for (const int number : numbers) {
      if (std::ranges::find(numbers_, number) == numbers_.end()) {
        add(number);
      }
    }
  } catch (...) {
    for (const int number : numbers_) {
      remove(number);
    }
    throw;
  }
}

Signals::~Signals() {
  for (const int number : numbers_) {
    remove(number);
  }
}

Task<int> Signals::wait(StopToken stop) {
  TANDEM_CHECK_FOR(loop_.name().c_str(), EventLoop::current_or_null() == &loop_,
                   "a Signals is awaited on the loop that it was made for");
  stop.throw_if_stopped();
  int number = 0;
  if (kept_.empty()) {
    number = co_await set_.async_wait(use_task(stop));
    if (stop.stop_requested()) {
      kept_.push_back(number);
      throw Stopped();
    }
  } else {
    number = kept_.front();
    kept_.pop_front();
  }
  co_return number;
}

void Signals::add(int number) {
  AllHandled& all = all_handled();
  const std::lock_guard lock(all.mutex);
  numbers_.reserve(numbers_.size() + 1);
  Handled& handled = all.by_number[number];
  struct sigaction before = {};
  ::sigaction(number, nullptr, &before);
  set_.add(number);
  if (handled.sets++ == 0) {
    handled.before = before;
    if (std::exchange(handled.knows_ours, true)) {
      // In a forked process Asio believes that its handler is in place.
      ::sigaction(number, &handled.ours, nullptr);
    } else {
      ::sigaction(number, nullptr, &handled.ours);
    }
  }
  numbers_.push_back(number);
}

void Signals::remove(int number) noexcept {
  AllHandled& all = all_handled();
  const std::lock_guard lock(all.mutex);
  if (forks_ != all.forks) {
    return;  // another process waited
  }
  Handled& handled = all.by_number[number];
  const Blocked blocked(number);
  struct sigaction now = {};
  ::sigaction(number, nullptr, &now);
  asio::error_code ignored;
  set_.remove(number, ignored);
  if (--handled.sets == 0) {
    // A handler that the program has set meanwhile stays.
    const bool is_ours = is_same_handler(now, handled.ours);
    ::sigaction(number, is_ours ? &handled.before : &now, nullptr);
  }
}

}  // namespace tandem
