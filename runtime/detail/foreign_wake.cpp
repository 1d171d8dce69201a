#include "runtime/detail/foreign_wake.hpp"

#include <cerrno>
#include <cstdint>
#include <system_error>

#include <asio/detail/epoll_reactor.hpp>
#include <asio/version.hpp>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem::detail {
namespace {

// Asio keeps the descriptor to itself, and nothing that it documents leads there. An explicit
// instantiation may name a private member; what it means was tried with the first and the last of
// these versions.
static_assert(ASIO_VERSION >= 102200 && ASIO_VERSION < 103900,
              "ready_descriptor() reads asio::detail::epoll_reactor::epoll_fd_, as Asio 1.22 to "
              "1.38 have it: look whether this Asio's reactor still sleeps on it alone");
#if !defined(ASIO_HAS_EPOLL) || defined(ASIO_HAS_IO_URING_AS_DEFAULT)
#error \
    "ready_descriptor() needs Asio's epoll reactor: build without ASIO_DISABLE_EPOLL and \
ASIO_HAS_IO_URING_AS_DEFAULT"
#endif
int epoll_of(asio::detail::epoll_reactor& reactor);
template <auto kMember>
struct Reveal {
  friend int epoll_of(asio::detail::epoll_reactor& reactor) { return reactor.*kMember; }
};
template struct Reveal<&asio::detail::epoll_reactor::epoll_fd_>;

int make_event() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) {
    throw failure(ExitCode::kFailure, "loop", "no eventfd: {}; raise `ulimit -n`",
                  std::generic_category().message(errno));
  }
  return descriptor;
}

}  // namespace

ForeignWake::ForeignWake(asio::io_context& reactor)
    : event_(reactor, make_event()),
      event_descriptor_(event_.native_handle()),
      descriptor_(epoll_of(asio::use_service<asio::detail::epoll_reactor>(reactor))) {
  watch();
}

void ForeignWake::ring() noexcept {
  const std::uint64_t once = 1;
  static_cast<void>(::write(event_descriptor_, &once, sizeof once));
}

void ForeignWake::watch() {
  event_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [this](const asio::error_code& error) {
                      if (error) {
                        return;
                      }
                      std::uint64_t times = 0;
                      static_cast<void>(::read(event_descriptor_, &times, sizeof times));
                      watch();
                    });
}

}  // namespace tandem::detail
