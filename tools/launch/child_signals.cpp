#include "tools/launch/child_signals.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/system/process_state.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr int kEnds[] = {SIGINT, SIGTERM, SIGHUP};

/// Processes whose parent is this one.
std::vector<pid_t> own_children() {
  std::vector<pid_t> children;
  for (const ProcessState& one : all_processes()) {
    if (one.parent == ::getpid()) {
      children.push_back(one.process);
    }
  }
  return children;
}

}  // namespace

ChildSignals::ChildSignals() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGUSR1}) {
    ::sigaddset(&set, number);
  }
  for (const int number : kEnds) {
    ::sigaddset(&set, number);
  }
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  descriptor_ = OwnedDescriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (descriptor_.get() < 0) {
    throw failure(ExitCode::kFailure, "launch", "no signals: {}", std::strerror(errno));
  }
}

std::optional<int> ChildSignals::next() const {
  signalfd_siginfo info{};
  if (::read(descriptor_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

std::optional<int> ChildSignals::end_pending() {
  sigset_t pending;
  ::sigpending(&pending);
  for (const int number : kEnds) {
    if (::sigismember(&pending, number) == 1) {
      return number;
    }
  }
  return std::nullopt;
}

void poll_until(std::vector<pollfd>& looked_at, std::chrono::steady_clock::time_point until) {
  using Clock = std::chrono::steady_clock;
  int timeout_ms = -1;
  if (until != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }
  (void)::poll(looked_at.data(), looked_at.size(), timeout_ms);
}

void end_children() {
  for (;;) {
    const std::vector<pid_t> children = own_children();
    for (const pid_t child : children) {
      (void)::kill(child, SIGKILL);
    }
    if (children.empty() || (::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD)) {
      return;
    }
  }
}

}  // namespace tandem
