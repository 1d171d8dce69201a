#include "runtime/detail/alarm.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem::detail {
namespace {

int make_timer() {
  const int descriptor = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (descriptor < 0) {
    throw failure(ExitCode::kFailure, "loop", "no timerfd: {}; raise `ulimit -n`",
                  std::generic_category().message(errno));
  }
  return descriptor;
}

}  // namespace

void Alarm::prepare() {
  if (!timer_) {
    timer_.emplace(reactor_, make_timer());
    watch();
  }
}

void Alarm::set(std::int64_t at_ns) {
  if (at_ns == set_ns_) {
    return;
  }
  prepare();
  set_ns_ = at_ns;
  itimerspec time = {};  // of zeros: it is off
  if (at_ns != kNever) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    at_ns = std::max<std::int64_t>(at_ns, 1);
    time.it_value = {.tv_sec = at_ns / kSecond, .tv_nsec = at_ns % kSecond};
  }
  ::timerfd_settime(timer_->native_handle(), TFD_TIMER_ABSTIME, &time, nullptr);
}

void Alarm::watch() {
  timer_->async_wait(asio::posix::stream_descriptor::wait_read,
                     [this](const asio::error_code& error) {
                       if (error) {
                         return;
                       }
                       std::uint64_t times = 0;
                       if (::read(timer_->native_handle(), &times, sizeof times) == sizeof times) {
                         set_ns_ = kNever;  // else it was set anew since
                       }
                       watch();
                     });
}

}  // namespace tandem::detail
