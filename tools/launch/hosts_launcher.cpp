#include "tools/launch/hosts_launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/launch/child_signals.hpp"
#include "tools/launch/line_relay.hpp"
#include "tools/launch/node_link.hpp"
#include "tools/launch/output.hpp"
#include "tools/launch/rank_process.hpp"
#include "tools/launch/remote_start.hpp"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kWitnessWaits{1'000};  // for the failure that it is a consequence of
constexpr std::size_t kLongestQuote = 300;
constexpr std::chrono::seconds kAnswer{20};  // beyond the grace, for ssh to learn of a dead host
constexpr std::size_t kLongestPrefixed = kLongestLine + 4096;  // a line that a host has prefixed

class HostsLauncher {
 public:
  explicit HostsLauncher(const HostsLaunchOptions& options);
  ~HostsLauncher();
  HostsLauncher(const HostsLauncher&) = delete;
  HostsLauncher& operator=(const HostsLauncher&) = delete;

  LaunchEnd run();

 private:
  struct Host {
    enum class State { kStarts, kIsReady, kRuns, kHasEnded };
    std::string name;
    int first_rank = 0;
    State state = State::kStarts;
    pid_t process = -1;
    bool runs = false;     // the process
    bool is_lost = false;  // no connection came about, or it ended before its ranks did
    int input = -1;
    std::unique_ptr<OutputRelay> lines;
    std::string key;        // with which its news begin
    std::string last_line;  // not from ranks: ssh's own output, for one
    std::string failure;    // as the host itself tells it
    bool lost_report = false;
    [[nodiscard]] std::string last_words() const {
      return last_line.empty() ? "" : fmt::format(" (its last line: {})", last_line);
    }
  };
  struct Failure {
    std::size_t host;
    std::optional<int> rank;  // none: the host itself
    int code;
    std::string text;  // as the host itself says it
    [[nodiscard]] bool by_a_peer() const { return rank && is_witness(code); }
  };

  void start(std::size_t number);
  void give_order(Host& host, const NodeOrder& order);
  void wait_for_something();
  [[nodiscard]] Clock::time_point next_poll() const;
  void relay();
  [[nodiscard]] bool is_of(std::size_t host, int rank) const;
  void take_line(std::size_t number, int output, std::string_view line);
  void take_news(std::size_t number, std::string_view line);
  void go_when_all_are_ready();
  void take_signals();
  void reap();
  void note_gone(std::size_t number, int status);
  void note_failure(Failure failure);
  void note_late();
  void look_at_clock();
  void end_all(int signal);
  [[nodiscard]] bool any_runs() const { return std::ranges::any_of(hosts_, &Host::runs); }
  [[nodiscard]] LaunchEnd report() const;
  [[nodiscard]] std::string describe_failure() const;
  [[nodiscard]] std::size_t host_of(int rank) const;
  [[nodiscard]] std::string with_host(int rank) const;

  const HostsLaunchOptions& options_;
  ChildSignals signals_;
  std::string secret_ = random_secret();
  std::string program_ = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<Host> hosts_;
  int world_ = 0;
  std::string meeting_;  // "ADDRESS PORT"
  Blames blames_;
  std::optional<Failure> failure_;
  bool began_ = false;  // the ranks
  bool ending_ = false;
  int interrupted_ = 0;  // by this signal
  Clock::time_point start_until_;
  Clock::time_point next_heartbeat_ = Clock::now();
  Output& output_ = Output::of_process();
  EndRequests requests_;
  std::optional<Clock::time_point> end_at_;  // the hosts are asked to end then
  std::optional<Clock::time_point> kill_at_;
};

HostsLauncher::HostsLauncher(const HostsLaunchOptions& options)
    : options_(options),
      start_until_(Clock::now() +
                   std::chrono::duration_cast<Clock::duration>(options.start_timeout)) {
  (void)heartbeat_period();  // a value that cannot be meant is said before anything starts
  for (const HostSlots& slots : options.hosts) {
    Host& host = hosts_.emplace_back();
    host.name = slots.name;
    host.first_rank = world_;
    world_ += static_cast<int>(slots.slots.size());
  }
}

HostsLauncher::~HostsLauncher() {
  signals_.end_children();
  for (Host& host : hosts_) {
    if (host.input >= 0) {
      ::close(host.input);
    }
  }
}

LaunchEnd HostsLauncher::run() {
  output_.hurry(false);
  for (std::size_t number = 0; number < hosts_.size(); ++number) {
    start(number);
  }
  while (any_runs()) {
    wait_for_something();
    take_signals();
    reap();
    look_at_clock();
    relay();
  }
  signals_.end_children();
  for (const Host& host : hosts_) {
    output_.wait_for_room();
    host.lines->relay_rest();
  }
  return report();
}

void HostsLauncher::start(std::size_t number) {
  Host& host = hosts_[number];
  const std::vector<std::string> command = ssh_command(host.name, program_);
  const ChildProcess made = start_child({.command = command,
                                         .variables = {},
                                         .cores = {},
                                         .mark = signals_.mark(),
                                         .is_written_to = true});
  host.process = made.process;
  host.runs = true;
  host.input = made.input;
  host.lines = std::make_unique<OutputRelay>(
      made.output, made.errors,
      [this, number](int to, std::string_view line) { take_line(number, to, line); },
      kLongestPrefixed);
  host.key = random_secret().substr(0, 32);
  give_order(host, order_for(options_, number, host.first_rank, world_, secret_));
}

void HostsLauncher::give_order(Host& host, const NodeOrder& order) {
  const std::string text = encode(order, host.key);
  (void)::fcntl(host.input, F_SETPIPE_SZ, static_cast<int>(kMostOrderBytes));
  (void)::fcntl(host.input, F_SETFL, O_NONBLOCK);
  const ssize_t written = ::write(host.input, text.data(), text.size());
  if (written >= 0 && written != static_cast<ssize_t>(text.size())) {
    throw user_error("launch",
                     "the command and its variables have {} bytes, at most {}; put them in a file",
                     text.size(), written);
  }
}

void HostsLauncher::wait_for_something() {
  std::vector<pollfd> looked_at = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  output_.watch(looked_at);
  if (output_.takes_more()) {
    for (const Host& host : hosts_) {
      host.lines->watch(looked_at);
    }
  }
  poll_until(looked_at, std::min({next_poll(), next_heartbeat_, output_.next_poll()}));
}

Clock::time_point HostsLauncher::next_poll() const {
  const bool starts = !ending_ && std::ranges::any_of(hosts_, [](const Host& host) {
    return host.state == Host::State::kStarts;
  });
  return std::min({starts ? start_until_ : Clock::time_point::max(),
                   end_at_.value_or(Clock::time_point::max()),
                   kill_at_.value_or(Clock::time_point::max())});
}

void HostsLauncher::relay() {
  output_.flush();
  for (const Host& host : hosts_) {
    if (output_.takes_more()) {
      host.lines->relay();
    }
  }
}

// The ranks' lines have their prefix. Other lines are of the host's launcher, of ssh, or of the
// shell that ssh starts: a banner, for one.
void HostsLauncher::take_line(std::size_t number, int output, std::string_view line) {
  Host& host = hosts_[number];
  if (output == 1 && line.front() == kMark) {
    const std::string_view news = line.substr(1, line.size() - 2);
    if (news.starts_with(host.key + " ")) {
      take_news(number, news.substr(host.key.size() + 1));
      return;
    }
    // A host that could not read its key starts no rank.
    if (host.state == Host::State::kStarts && news.starts_with("refused ")) {
      take_news(number, news);
      return;
    }
  }
  if (line.starts_with(fmt::format("[{}:", host.name))) {
    output_.write(output, line);
  } else {
    line = line.substr(0, line.find_last_not_of("\r\n") + 1);
    host.last_line = line.empty() ? host.last_line : one_line(line.substr(0, kLongestQuote));
    output_.write(output, fmt::format("[{}] {}\n", host.name, one_line(line)));
  }
}

bool HostsLauncher::is_of(std::size_t host, int rank) const {
  const int end = host + 1 < hosts_.size() ? hosts_[host + 1].first_rank : world_;
  return rank >= hosts_[host].first_rank && rank < end;
}

void HostsLauncher::take_news(std::size_t number, std::string_view line) {
  Host& host = hosts_[number];
  const std::optional<News> news = parse_news(line);
  if (!news || (news->rank >= 0 && !is_of(number, news->rank))) {
    say("launch: host {} says \"{}\", which is no news of its ranks; that is left aside", host.name,
        line.substr(0, kLongestQuote));
    return;
  }
  switch (news->what) {
    case News::What::kReady:
      if (host.state == Host::State::kStarts) {
        host.state = Host::State::kIsReady;
        meeting_ = number == 0 ? news->text : meeting_;
        go_when_all_are_ready();
      }
      return;
    case News::What::kFailed:
      if (is_witness(news->code) && !ending_ && news->blamed && *news->blamed < world_) {
        blames_.by_witness[news->rank] = *news->blamed;
      }
      return note_failure({.host = number, .rank = news->rank, .code = news->code, .text = ""});
    case News::What::kStopped:
      blames_.stopped.insert(news->rank);
      return;
    case News::What::kRuns:
      if (!ending_) {  // later it runs in order to end
        blames_.stopped.erase(news->rank);
      }
      return;
    case News::What::kEnded:
      host.state = Host::State::kHasEnded;
      host.failure = news->text;
      host.lost_report = news->code == static_cast<int>(ExitCode::kReportLost);
      return;
    case News::What::kRefused:
      host.state = Host::State::kHasEnded;
      constexpr std::string_view kWhere = "[launch] ";
      std::string_view text = news->text;
      text.remove_prefix(text.starts_with(kWhere) ? kWhere.size() : 0);
      return note_failure({.host = number,
                           .rank = std::nullopt,
                           .code = std::max(news->code, 1),
                           .text = fmt::format("host {}: {}", host.name, text)});
  }
}

void HostsLauncher::go_when_all_are_ready() {
  if (ending_ || std::ranges::any_of(hosts_, [](const Host& host) {
        return host.state != Host::State::kIsReady;
      })) {
    return;
  }
  const std::string order = fmt::format("go {}\n", meeting_);
  began_ = true;
  for (Host& host : hosts_) {
    host.state = Host::State::kRuns;
    (void)!::write(host.input, order.data(), order.size());
  }
}

void HostsLauncher::take_signals() {
  while (const std::optional<int> number = signals_.next()) {
    if (*number == SIGUSR1) {
      end_all(*number);
    } else if (*number != SIGCHLD &&
               requests_.note(*number, Clock::now()) != EndRequests::Means::kNothing) {
      interrupted_ = requests_.first();
      output_.be_brief();
      end_all(*number);
    }
  }
}

// SIGUSR1 asks for a checkpoint, and nothing ends. A host that is not there yet has nothing to end.
void HostsLauncher::end_all(int signal) {
  const std::string order = fmt::format("signal {}\n", signal);
  for (const Host& host : hosts_) {
    if (host.runs && host.state != Host::State::kStarts) {
      (void)!::write(host.input, order.data(), order.size());
    } else if (host.runs && signal != SIGUSR1) {
      (void)::kill(-host.process, SIGKILL);
    }
  }
  if (signal == SIGUSR1) {
    return;
  }
  const auto longest =
      Clock::now() + (ending_ ? milliseconds(0) : options_.settings.grace) + kAnswer;
  kill_at_ = std::min(kill_at_.value_or(longest), longest);
  ending_ = true;
  output_.hurry(true);
}

void HostsLauncher::reap() {
  int status = 0;
  for (pid_t process = 0; (process = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    for (std::size_t number = 0; number < hosts_.size(); ++number) {
      if (hosts_[number].process == process) {
        hosts_[number].runs = false;
        hosts_[number].lines->relay_rest();  // its last words come before its end
        note_gone(number, status);
      }
    }
  }
}

void HostsLauncher::note_gone(std::size_t number, int status) {
  Host& host = hosts_[number];
  if (host.state == Host::State::kHasEnded || (host.state == Host::State::kStarts && ending_)) {
    return;
  }
  const int code = code_of(status);
  constexpr int kNotExecutable = 126;  // a shell's codes: not executable, not found
  constexpr int kNotFound = 127;
  if (host.state == Host::State::kStarts && (code == kNotFound || code == kNotExecutable)) {
    note_failure({.host = number,
                  .rank = std::nullopt,
                  .code = static_cast<int>(ExitCode::kUserInput),
                  .text = fmt::format("host {}: cannot start {}{}; the same must be there on every "
                                      "host",
                                      host.name, program_, host.last_words())});
    return;
  }
  host.is_lost = true;
  const std::string end = fmt::format("ssh {}{}", describe_end(status), host.last_words());
  note_failure(
      {.host = number,
       .rank = std::nullopt,
       .code = static_cast<int>(ExitCode::kPeer),
       .text = host.state == Host::State::kStarts
                   ? fmt::format("there is no connection to host {}: {}; try `ssh {}`", host.name,
                                 end, host.name)
                   : fmt::format("the connection to host {} ended: {}; see whether it runs",
                                 host.name, end)});
}

// A lost host is the cause of what witnesses saw, however late ssh learns of it.
void HostsLauncher::note_failure(Failure failure) {
  const bool explains = failure_ && failure_->by_a_peer() && !failure.by_a_peer();
  const bool is_lost_host = !failure.rank && is_witness(failure.code);
  if (interrupted_ != 0 || (failure_ && !explains) || (ending_ && !is_lost_host)) {
    return;
  }
  failure_ = std::move(failure);
  if (!ending_) {
    end_at_ = std::min(end_at_.value_or(Clock::time_point::max()),
                       Clock::now() + (failure_->by_a_peer() ? kWitnessWaits : milliseconds(0)));
  }
}

// All of them are lost; the first one is named as the failure.
void HostsLauncher::note_late() {
  for (std::size_t number = 0; number < hosts_.size(); ++number) {
    Host& host = hosts_[number];
    if (host.state != Host::State::kStarts) {
      continue;
    }
    host.is_lost = true;
    note_failure(
        {.host = number,
         .rank = std::nullopt,
         .code = static_cast<int>(ExitCode::kPeer),
         .text = fmt::format("host {} did not come within {} s{}; try `ssh {}`", host.name,
                             options_.start_timeout.count() / 1e9, host.last_words(), host.name)});
  }
}

void HostsLauncher::look_at_clock() {
  const auto now = Clock::now();
  if (now >= next_heartbeat_) {
    next_heartbeat_ = now + std::chrono::duration_cast<Clock::duration>(heartbeat_period());
    for (const Host& host : hosts_) {
      (void)!::write(host.input, "alive\n", 6);  // whole or not at all
    }
  }
  if (!ending_ && !failure_ && now >= start_until_) {
    note_late();
  }
  if (end_at_ && now >= *end_at_ && !ending_) {
    say("launch: {}; ending the other hosts",
        failure_->rank
            ? fmt::format("rank {} on host {} failed", *failure_->rank, hosts_[failure_->host].name)
            : failure_->text);
    end_all(SIGTERM);
  }
  if (kill_at_ && now >= *kill_at_) {
    for (const Host& host : hosts_) {
      if (host.runs) {
        (void)::kill(-host.process, SIGKILL);
      }
    }
    kill_at_ = now + milliseconds(100);
  }
}

LaunchEnd HostsLauncher::report() const {
  LaunchEnd end{.code = interrupted_ != 0 ? 128 + interrupted_ : 0,
                .interrupted = interrupted_ != 0,
                .began = began_};
  if (failure_) {
    end.code = failure_->code;
    end.failure = describe_failure();
  }
  for (const Host& host : hosts_) {
    if (host.lost_report && end.code == 0) {
      end.code = static_cast<int>(ExitCode::kReportLost);
      end.failure = fmt::format("host {}: {}", host.name, host.failure);
    }
    if (host.is_lost) {
      end.lost_hosts.push_back(host.name);
    }
  }
  return end;
}

std::string HostsLauncher::describe_failure() const {
  const Host& host = hosts_[failure_->host];
  if (!failure_->rank) {
    return failure_->text;
  }
  const std::string own = fmt::format(
      "host {}: {}", host.name,
      host.failure.empty()
          ? fmt::format("rank {} of {} ended with {}", *failure_->rank, world_, failure_->code)
          : host.failure);
  const std::string others = failure_->by_a_peer()
                                 ? blames_.text([this](int rank) { return host_of(rank); },
                                                [this](int rank) { return with_host(rank); })
                                 : "";
  return others.empty() ? own : fmt::format("{}: {}", others, own);
}

std::size_t HostsLauncher::host_of(int rank) const {
  const auto next =
      std::ranges::find_if(hosts_, [rank](const Host& host) { return host.first_rank > rank; });
  TANDEM_CHECK(next != hosts_.begin(), "a rank below 0");
  return static_cast<std::size_t>(next - hosts_.begin()) - 1;
}

/// "3 of 4 (host b)".
std::string HostsLauncher::with_host(int rank) const {
  return fmt::format("{} of {} (host {})", rank, world_, hosts_[host_of(rank)].name);
}

}  // namespace

LaunchEnd launch_on_hosts(const HostsLaunchOptions& options) {
  return HostsLauncher(options).run();
}

}  // namespace tandem
