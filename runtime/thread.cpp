#include "runtime/thread.hpp"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <limits>
#include <system_error>
#include <utility>

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "runtime/system/limits.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/error.hpp"

namespace tandem::thread {
namespace {
std::atomic<int> counted_threads{0};
std::atomic<int> most_cpus{std::numeric_limits<int>::max()};
}  // namespace

std::thread start(const std::string& owner, int number, int of, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw failure(
        ExitCode::kRefused, "threads",
        "{}: thread {} of {} cannot be made: {} ({}); raise the limit or use fewer threads", owner,
        number + 1, of, error.code().message(), limits::threads_text());
  }
}

void set_name(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  trace::set_thread_name(name);
}

bool pin_to(int cpu) noexcept {
  if (cpu < 0 || cpu >= CPU_SETSIZE) {
    return false;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

void set_background() noexcept {
  const sched_param none = {};
  sched_setscheduler(0, SCHED_BATCH, &none);  // a refusal leaves the thread as it was
}

void set_punctual() noexcept { prctl(PR_SET_TIMERSLACK, 1); }

std::int64_t cpu_now_ns() noexcept {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void enter_runtime(int threads) noexcept {
  counted_threads.fetch_add(threads, std::memory_order_relaxed);
}
void leave_runtime(int threads) noexcept {
  counted_threads.fetch_sub(threads, std::memory_order_relaxed);
}

void limit_cpus(int cpus) noexcept { most_cpus.store(cpus, std::memory_order_relaxed); }

int spare_cpus() noexcept {
  static const int usable = machine::usable_cpus();
  return std::min(usable, most_cpus.load(std::memory_order_relaxed)) -
         counted_threads.load(std::memory_order_relaxed);
}

}  // namespace tandem::thread
