#include "runtime/io/uring.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/system/machine.hpp"
#include "runtime/system/thread_id.hpp"

namespace tandem::detail {
namespace {
constexpr int kWorkersMin = 2;
}  // namespace

const char* uring_refusal(int number) noexcept {
  switch (number) {
    case ENOSYS:
      return "the kernel or the container's system-call filter has no io_uring";
    case EPERM:
    case EACCES:
      return "refused by the container or by the sysctl kernel.io_uring_disabled";
    case ENOMEM:
      return "no memory may be locked for it: raise `ulimit -l`";
    case EOPNOTSUPP:
      return "the kernel's io_uring is too old";
    default:
      return std::strerror(number);
  }
}

Uring::Uring(unsigned entries) noexcept {
  error_ = set_up(entries);
  if (error_ != 0) {
    return;
  }
  ask_what_it_can();
  // Without dropped completions, stable submissions and a switch for the eventfd it is not worth
  // having.
  constexpr unsigned kNeeded = IORING_FEAT_NODROP | IORING_FEAT_SUBMIT_STABLE;
  const bool ops =
      can_do(IORING_OP_READ) && can_do(IORING_OP_WRITE) && can_do(IORING_OP_ASYNC_CANCEL);
  if ((ring_.features & kNeeded) != kNeeded || !ops || ring_.cq.kflags == nullptr) {
    error_ = EOPNOTSUPP;
    return;
  }
  event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) {
    error_ = errno;
    return;
  }
  error_ = -io_uring_register_eventfd(&ring_, event_);
  notify_event(false);
  // As many workers of the kernel's as can run: more only take turns, and each brings its buffer
  // into the caches. The first number is of those for files. An old kernel that cannot be told has
  // its own.
  unsigned workers[2] = {static_cast<unsigned>(std::max(kWorkersMin, machine::usable_cpus())), 0};
  static_cast<void>(io_uring_register_iowq_max_workers(&ring_, workers));
}

Uring::~Uring() {
  if (made_) {
    io_uring_queue_exit(&ring_);
  }
  if (event_ >= 0) {
    ::close(event_);
  }
}

int Uring::set_up(unsigned entries) noexcept {
  // The best first; a kernel that does not know a flag says EINVAL.
  constexpr unsigned kDeferred = IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
                                 IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                                 IORING_SETUP_SUBMIT_ALL;
  constexpr unsigned kCooperative =
      IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL;
  int result = 0;
  for (const unsigned flags : {kDeferred, kCooperative, 0U}) {
    io_uring_params parameters{};
    parameters.flags = flags;
    result = io_uring_queue_init_params(entries, &ring_, &parameters);
    if (result == 0) {
      made_ = true;
      deferred_ = flags == kDeferred;
      // Each operation may have a request to cancel it beside it: so completions always fit.
      entries_ = std::min(parameters.sq_entries, parameters.cq_entries / 2);
      return 0;
    }
    if (result != -EINVAL) {
      break;
    }
  }
  return -result;
}

void Uring::ask_what_it_can() noexcept {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) {
    return;
  }
  for (unsigned i = 0; i < can_do_.size(); ++i) {
    can_do_[i] = io_uring_opcode_supported(probe, static_cast<int>(i)) != 0;
  }
  io_uring_free_probe(probe);
}

bool Uring::belongs_here() noexcept {
  const std::uint64_t here = this_thread_id();
  if (thread_ == here || !deferred_) {
    return true;
  }
  if (thread_ != 0) {
    return false;
  }
  thread_ = here;
  // Binds it to this thread. (liburing 2.3 declares a function for it and does not export it.)
  const long result =
      ::syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  TANDEM_CHECK_EQ(result, 0, "a ring that was made can be switched on");
  return true;
}

bool Uring::enter() noexcept {
  while (io_uring_sq_ready(&ring_) > 0) {
    const int result = deferred_ ? io_uring_submit_and_get_events(&ring_) : io_uring_submit(&ring_);
    if (result == -EINTR) {
      continue;
    }
    if (result <= 0) {
      TANDEM_CHECK(result == 0 || result == -EAGAIN || result == -EBUSY,
                   "the kernel takes what was prepared, now or later");
      return false;
    }
  }
  return true;
}

}  // namespace tandem::detail
