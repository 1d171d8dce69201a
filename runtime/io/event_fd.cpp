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
  std::uint64_t count = 0;
  co_await stream_.async_read_some(asio::buffer(&count, sizeof count), use_task(stop));
  co_return count;
}

}  // namespace tandem
