#include "tools/launch/child_signals.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/system/process_state.hpp"
#include "runtime/util/error.hpp"
#include "tools/launch/rank_process.hpp"

namespace tandem {
namespace {

constexpr int kEnds[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};

int as_request(int number) { return number == SIGXCPU ? SIGTERM : number; }

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  for (const ProcessState& one : all_processes()) {
    if (one.parent == ::getpid()) {
      children.push_back(one.process);
    }
  }
  return children;
}

bool carries(pid_t process, const std::string& mark) {
  std::stringstream variables;
  variables << std::ifstream(fmt::format("/proc/{}/environ", process)).rdbuf();
  return variables.str().find(mark) != std::string::npos;
}

}  // namespace

bool is_passed_on(int signal) {
  return signal == SIGUSR1 || std::ranges::find(kEnds, signal) != std::end(kEnds);
}

ChildSignals::ChildSignals() {
  const char* const outer = std::getenv(kLaunchMark);  // a launcher may be another one's rank
  mark_ = fmt::format("{}/{}", outer != nullptr ? outer : "", random_secret().substr(0, 16));
  for (const pid_t child : children_of_this_process()) {
    strangers_.insert(child);
  }
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
  return as_request(static_cast<int>(info.ssi_signo));
}

std::optional<int> ChildSignals::end_pending() {
  sigset_t pending;
  ::sigpending(&pending);
  for (const int number : kEnds) {
    if (::sigismember(&pending, number) == 1) {
      return as_request(number);
    }
  }
  return std::nullopt;
}

// A stranger's children become this process's, too, when it dies: where there are strangers, the
// mark tells whose a child is.
std::vector<pid_t> ChildSignals::own_children() const {
  std::vector<pid_t> children = children_of_this_process();
  if (!strangers_.empty()) {
    std::erase_if(children, [this](pid_t child) {
      return strangers_.contains(child) || !carries(child, mark_);
    });
  }
  return children;
}

void ChildSignals::end_children() const {
  for (;;) {
    const std::vector<pid_t> children = own_children();
    for (const pid_t child : children) {
      (void)::kill(child, SIGKILL);
    }
    if (children.empty()) {
      return;
    }
    for (const pid_t child : children) {
      while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
}

EndRequests::Means EndRequests::note(int signal, std::chrono::steady_clock::time_point now) {
  if (first_ == 0) {
    first_ = signal;
    since_ = now;
    return Means::kEnd;
  }
  return now - since_ < kApart ? Means::kNothing : Means::kEndAtOnce;
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

}  // namespace tandem
