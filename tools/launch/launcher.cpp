#include "tools/launch/launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/flight.hpp"
#include "runtime/system/limits.hpp"
#include "runtime/system/process_state.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/launch/line_relay.hpp"
#include "tools/launch/rank_process.hpp"

namespace tandem {
namespace {

/// A line beside those of the ranks; what it quotes of files and ranks is escaped.
template <class... Args>
void say(fmt::format_string<Args...> what, Args&&... args) {
  const std::string line = one_line(fmt::format(what, std::forward<Args>(args)...));
  fmt::print(stderr, "{}\n", line);
}

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kWitnessWaits{300};  // for the failure that it is a consequence of

int code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

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

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  int run();

 private:
  struct Rank {
    pid_t process = -1;
    bool runs = false;
    int log = -1;
    std::unique_ptr<LineRelay> output;
    std::unique_ptr<LineRelay> errors;
    int flight = -1;  // its recorder's file, and a mapping of it
    const flight::Ring* ring = nullptr;
    std::optional<Clock::time_point> stopped;  // since when
  };
  struct Failure {
    int rank;
    int status;
    std::string why;  // what the kernel knows more
  };

  void watch_signals();
  void start_all();
  void wait_for_something();
  void take_signals();
  void reap();
  void note_stop(int rank, int status);
  void note_end(int rank, int status, const rusage& used);
  void look_back();
  [[nodiscard]] std::vector<std::size_t> stopped_ranks() const;
  void look_at_clock();
  void end_others();
  void ask_to_end(int number);
  void end_tree();
  void signal_ranks(int number);
  void relay_all();
  [[nodiscard]] bool any_runs() const;
  [[nodiscard]] int timeout_ms() const;
  [[nodiscard]] int report();

  const LaunchOptions& options_;
  std::vector<Rank> ranks_;
  int signals_ = -1;
  int port_held_ = -1;  // a socket, for as long as ranks may meet there
  std::optional<Failure> failure_;
  bool looked_back_ = false;
  std::vector<std::size_t> at_fault_;  // ranks that are stopped, or that the others wait for
  std::string fault_;                  // in words
  std::uint64_t oom_kills_ = limits::oom_kills();
  int interrupted_ = 0;                      // by this signal
  std::optional<Clock::time_point> end_at_;  // the others are asked to end then
  std::optional<Clock::time_point> kill_at_;
};

Launcher::~Launcher() {
  end_tree();
  for (Rank& rank : ranks_) {
    rank.output.reset();
    rank.errors.reset();
    for (const int descriptor : {rank.log, rank.flight}) {
      if (descriptor >= 0) {
        ::close(descriptor);
      }
    }
  }
  for (const int descriptor : {signals_, port_held_}) {
    if (descriptor >= 0) {
      ::close(descriptor);
    }
  }
}

int Launcher::run() {
  watch_signals();
  start_all();
  while (any_runs()) {
    wait_for_something();
    relay_all();
    take_signals();
    reap();
    look_at_clock();
  }
  end_tree();
  relay_all();  // what was written before the end and not read yet
  return report();
}

// Taken through a descriptor, in the order of the loop's other events.
void Launcher::watch_signals() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    ::sigaddset(&set, number);
  }
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals_ < 0) {
    throw failure(ExitCode::kFailure, "launch", "no signals: {}", std::strerror(errno));
  }
}

void Launcher::start_all() {
  const HeldPort held = hold_port();
  port_held_ = held.descriptor;
  const std::string secret = random_secret();
  std::vector<std::vector<int>> cores(static_cast<std::size_t>(options_.ranks));
  if (options_.bind_cores_to_rank) {
    cores = split_cores(options_.ranks);
  }
  std::error_code error;
  if (!options_.log_dir.empty()) {
    std::filesystem::create_directories(options_.log_dir, error);
  }
  for (int number = 0; number < options_.ranks; ++number) {
    Rank& rank = ranks_.emplace_back();
    if (!options_.log_dir.empty()) {
      const std::string path = fmt::format("{}/rank_{}.log", options_.log_dir, number);
      rank.log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
      if (rank.log < 0) {
        throw user_error("launch", "cannot write {}: {}; give another --log_dir", path,
                         std::strerror(errno));
      }
    }
    rank.flight = flight::make_ring_file();
    rank.ring = flight::map_ring(rank.flight);
    const RankProcess made =
        start_rank({.command = options_.command,
                    .variables = rank_variables(number, options_.ranks, held.port, secret),
                    .cores = cores[static_cast<std::size_t>(number)],
                    .flight = rank.flight});
    rank.process = made.process;
    rank.runs = true;
    const std::string prefix = fmt::format("[{}] ", number);
    rank.output = std::make_unique<LineRelay>(made.output, 1, rank.log, prefix);
    rank.errors = std::make_unique<LineRelay>(made.errors, 2, rank.log, prefix);
  }
}

void Launcher::wait_for_something() {
  std::vector<pollfd> looked_at = {{.fd = signals_, .events = POLLIN, .revents = 0}};
  for (const Rank& rank : ranks_) {
    for (const LineRelay* relay : {rank.output.get(), rank.errors.get()}) {
      if (relay->descriptor() >= 0) {
        looked_at.push_back({.fd = relay->descriptor(), .events = POLLIN, .revents = 0});
      }
    }
  }
  (void)::poll(looked_at.data(), looked_at.size(), timeout_ms());
}

int Launcher::timeout_ms() const {
  const auto next = std::min(end_at_.value_or(Clock::time_point::max()),
                             kill_at_.value_or(Clock::time_point::max()));
  if (next == Clock::time_point::max()) {
    return -1;
  }
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void Launcher::relay_all() {
  for (const Rank& rank : ranks_) {
    rank.output->relay();
    rank.errors->relay();
  }
}

// The ranks end themselves as they see fit; a second signal ends them at once.
void Launcher::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_, &info, sizeof(info)) == sizeof(info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) {
      continue;
    }
    if (number == SIGUSR1) {  // "save": to all of them, and nothing ends
      signal_ranks(number);
      continue;
    }
    if (interrupted_ != 0) {
      kill_at_ = Clock::now();
      continue;
    }
    interrupted_ = number;
    ask_to_end(number);
  }
}

void Launcher::reap() {
  int status = 0;
  rusage used{};
  for (pid_t process = 0;
       (process = ::wait4(-1, &status, WNOHANG | WUNTRACED | WCONTINUED, &used)) > 0;) {
    for (std::size_t number = 0; number < ranks_.size(); ++number) {
      if (ranks_[number].process != process) {
        continue;
      }
      note_stop(static_cast<int>(number), status);
      if (!WIFSTOPPED(status) && !WIFCONTINUED(status)) {
        ranks_[number].runs = false;
        note_end(static_cast<int>(number), status, used);
      }
    }
  }
}

// It is said at once, and decides nothing: the one that stopped it may let it go on.
void Launcher::note_stop(int rank, int status) {
  auto& stopped = ranks_[static_cast<std::size_t>(rank)].stopped;
  const auto now = Clock::now();
  if (WIFSTOPPED(status) && !stopped) {
    stopped = now;
    say("launch: rank {} is stopped by signal {} ({}); the others wait for it", rank,
        WSTOPSIG(status), ::strsignal(WSTOPSIG(status)));
  } else if ((WIFCONTINUED(status) || WIFEXITED(status)) && stopped) {
    if (!kill_at_) {
      say("launch: rank {} runs again after {:.1f} s", rank,
          std::chrono::duration<double>(now - *stopped).count());
    }
    stopped.reset();
  }
}

void Launcher::note_end(int rank, int status, const rusage& used) {
  const int code = code_of(status);
  if (code == 0 || interrupted_ != 0 ||
      kill_at_) {  // after that they end because they were asked to
    return;
  }
  const auto is_witness = [](int some) { return some == static_cast<int>(ExitCode::kPeer); };
  if (!failure_ || (is_witness(code_of(failure_->status)) && !is_witness(code))) {
    std::string why;
    if (code == 128 + SIGKILL && limits::oom_kills() > oom_kills_) {
      constexpr double kGiB = 1 << 30;
      const auto limit = limits::memory_bytes();
      why = fmt::format(
          " by the kernel for want of memory: it held {:.2f} GiB{}; use a smaller batch, a smaller "
          "model or fewer ranks",
          static_cast<double>(used.ru_maxrss) * 1024 / kGiB,
          limit ? fmt::format(", the limit of the control group is {:.2f} GiB",
                              static_cast<double>(*limit) / kGiB)
                : "");
    }
    failure_ = Failure{rank, status, std::move(why)};
    // The rank at fault gets a moment to be seen, before the others are ended.
    end_at_ = std::min(end_at_.value_or(Clock::time_point::max()),
                       Clock::now() + (is_witness(code) ? kWitnessWaits : milliseconds(0)));
  }
}

/// Ranks that do not run because they, or a process of theirs, are stopped.
std::vector<std::size_t> Launcher::stopped_ranks() const {
  std::vector<std::size_t> found;
  const std::vector<ProcessState> processes = all_processes();
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    if (std::ranges::any_of(processes, [&](const ProcessState& one) {
          return one.group == ranks_[number].process && (one.state == 'T' || one.state == 't');
        })) {
      found.push_back(number);
    }
  }
  return found;
}

// Once, as things stand when the first rank has failed: what the flight recorders say, and who is
// stopped.
void Launcher::look_back() {
  if (std::exchange(looked_back_, true)) {
    return;
  }
  const std::int64_t now_ns = flight::now_ns();
  std::vector<std::vector<flight::Entry>> rings;
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    const flight::Ring* ring = ranks_[number].ring;
    rings.push_back(ring != nullptr ? ring->entries() : std::vector<flight::Entry>());
    if (!options_.log_dir.empty() && !rings.back().empty()) {
      std::ofstream(fmt::format("{}/flight_rank_{}.txt", options_.log_dir, number))
          << flight::describe(rings.back(), now_ns);
    }
  }
  const auto explanation = flight::explain(rings, now_ns);
  const auto& last = rings[static_cast<std::size_t>(failure_->rank)];
  const bool is_witness = code_of(failure_->status) == static_cast<int>(ExitCode::kPeer);
  at_fault_ = stopped_ranks();
  if (!at_fault_.empty()) {
    fault_ = "is stopped";
  } else if (is_witness && explanation) {
    at_fault_ = explanation->absent;
    fault_ = "held the others up";
  }
  if (is_witness && explanation) {
    say("launch: {}", explanation->text);
  } else if (WIFSIGNALED(failure_->status) && !last.empty()) {
    say("launch: of rank {}, {}", failure_->rank, flight::last_of(last, now_ns));
  }
}

void Launcher::look_at_clock() {
  const auto now = Clock::now();
  if (end_at_ && now >= *end_at_ && !kill_at_ && any_runs()) {
    end_others();
  }
  if (kill_at_ && now >= *kill_at_) {
    signal_ranks(SIGKILL);
    kill_at_ = now + milliseconds(100);  // again, for those that were just being made
  }
}

void Launcher::end_others() {
  say("launch: rank {} {}; ending the other ranks", failure_->rank, describe_end(failure_->status));
  look_back();
  ask_to_end(SIGTERM);
}

void Launcher::ask_to_end(int number) {
  signal_ranks(number);
  signal_ranks(SIGCONT);  // a stopped one gets it only then
  kill_at_ = Clock::now() + options_.grace;
}

void Launcher::signal_ranks(int number) {
  for (const Rank& rank : ranks_) {
    if (rank.runs) {
      (void)::kill(-rank.process, number);
    }
  }
}

// Whatever of the ranks is left: it became a child of the launcher when its parent died, and so
// will what it leaves.
void Launcher::end_tree() {
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

bool Launcher::any_runs() const { return std::ranges::any_of(ranks_, &Rank::runs); }

int Launcher::report() {
  if (failure_) {
    look_back();
    const bool is_witness = code_of(failure_->status) == static_cast<int>(ExitCode::kPeer);
    const int shown =
        is_witness && !at_fault_.empty() ? static_cast<int>(at_fault_.front()) : failure_->rank;
    const std::string log = options_.log_dir.empty()
                                ? std::string("its output")
                                : fmt::format("{}/rank_{}.log", options_.log_dir, shown);
    const std::string end = describe_end(failure_->status) + failure_->why;
    if (is_witness && !at_fault_.empty()) {
      say("error: [launch] rank {} of {} {}: rank {} {}; see {}",
          fmt::join(at_fault_, " and rank "), options_.ranks, fault_, failure_->rank, end, log);
    } else {
      say("error: [launch] rank {} of {} {}; see {}", failure_->rank, options_.ranks, end, log);
    }
    return code_of(failure_->status);
  }
  return interrupted_ != 0 ? 128 + interrupted_ : 0;
}

}  // namespace

int launch(const LaunchOptions& options) { return Launcher(options).run(); }

}  // namespace tandem
