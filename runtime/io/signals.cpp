#include "runtime/io/signals.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace tandem {
namespace {

// The process's handling of a signal before the first set waited for it.
struct Handled {
  int sets = 0;
  struct sigaction before = {};
  struct sigaction ours = {};
};

struct AllHandled {
  std::mutex mutex;
  std::map<int, Handled> by_number;
};

AllHandled& all_handled() {
  static AllHandled& all = *new AllHandled;
  return all;
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

bool is_same_handler(const struct sigaction& one, const struct sigaction& other) noexcept {
  return (one.sa_flags & SA_SIGINFO) == (other.sa_flags & SA_SIGINFO) &&
         ((one.sa_flags & SA_SIGINFO) != 0 ? one.sa_sigaction == other.sa_sigaction
                                           : one.sa_handler == other.sa_handler);
}

}  // namespace

Signals::Signals(EventLoop& loop, std::initializer_list<int> numbers) : set_(loop.reactor()) {
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
    ::sigaction(number, nullptr, &handled.ours);
  }
  numbers_.push_back(number);
}

void Signals::remove(int number) noexcept {
  AllHandled& all = all_handled();
  const std::lock_guard lock(all.mutex);
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
