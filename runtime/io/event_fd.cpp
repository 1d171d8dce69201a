#include "runtime/io/event_fd.hpp"

#include <cerrno>
#include <system_error>

#include <asio/buffer.hpp>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

int make_event() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) {
    throw failure(ExitCode::kFailure, "io", "no eventfd: {}; raise `ulimit -n`",
                  std::generic_category().message(errno));
  }
  return descriptor;
}

}  // namespace

EventFd::EventFd(EventLoop& loop) : EventFd(loop, make_event()) {}

void EventFd::notify(std::uint64_t times) noexcept {
  // Fails only when the counter is full: then it stays as it is.
  static_cast<void>(::write(descriptor(), &times, sizeof times));
}

Task<std::uint64_t> EventFd::wait(StopToken stop) {
  TANDEM_CHECK_FOR(loop_.name().c_str(), EventLoop::current_or_null() == &loop_,
                   "an EventFd is awaited on the loop that it was made for");
  stop.throw_if_stopped();
  std::uint64_t count = std::exchange(kept_, 0);
  if (count == 0) {
    co_await stream_.async_read_some(asio::buffer(&count, sizeof count), use_task(stop));
    if (stop.stop_requested()) {
      kept_ = count;
      throw Stopped();
    }
  }
  co_return count;
}

}  // namespace tandem
