// runtime/io/reactor_wake.hpp — ends the loop's sleep when a descriptor, which another object owns,
// becomes readable.
//
// Thread rule: the loop's thread. The object may be destroyed inside of the callback, and at any
// time.
//
//   ReactorWake wake(loop, ring.event_descriptor(), &woken, this);   wake.arm();
#pragma once

#include <cerrno>
#include <memory>
#include <system_error>

#include <asio/bind_allocator.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <fcntl.h>

#include "runtime/event_loop.hpp"
#include "runtime/io/recycling_allocator.hpp"
#include "runtime/util/error.hpp"

namespace tandem::detail {

class ReactorWake {
 public:
  using Woken = void (*)(void* owner) noexcept;

  /// Works with a copy of `descriptor`. Throws Error if no descriptor is left.
  ReactorWake(EventLoop& loop, int descriptor, Woken woken, void* owner)
      : event_(loop.reactor(), copy_of(descriptor)), woken_(woken), owner_(owner) {}
  ~ReactorWake() { *self_ = nullptr; }
  ReactorWake(const ReactorWake&) = delete;
  ReactorWake& operator=(const ReactorWake&) = delete;

  /// Has woken(owner) called once the descriptor can be read; then it is to be armed again. Does
  /// nothing while armed.
  void arm() {
    if (armed_) {
      return;
    }
    armed_ = true;
    event_.async_wait(asio::posix::stream_descriptor::wait_read,
                      asio::bind_allocator(RecyclingAllocator<void>(),
                                           [self = self_](const asio::error_code& error) {
                                             if (*self != nullptr) {
                                               (*self)->armed_ = false;
                                               if (!error) {
                                                 (*self)->woken_((*self)->owner_);
                                               }
                                             }
                                           }));
  }

 private:
  static int copy_of(int descriptor) {
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
      throw failure(ExitCode::kFailure, "loop", "no descriptor: {}; raise `ulimit -n`",
                    std::generic_category().message(errno));
    }
    return copy;
  }

  asio::posix::stream_descriptor event_;
  Woken woken_;
  void* owner_;
  bool armed_ = false;
  std::shared_ptr<ReactorWake*> self_ = std::make_shared<ReactorWake*>(this);  // null when gone
};

}  // namespace tandem::detail
