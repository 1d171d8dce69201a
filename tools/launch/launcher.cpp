#include "tools/launch/launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/flight.hpp"
#include "runtime/system/limits.hpp"
#include "runtime/system/process_state.hpp"
#include "runtime/util/error.hpp"
#include "tools/launch/child_signals.hpp"
#include "tools/launch/launch_words.hpp"
#include "tools/launch/line_relay.hpp"
#include "tools/launch/node_link.hpp"
#include "tools/launch/output.hpp"
#include "tools/launch/rank_process.hpp"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kWitnessWaits{300};  // for the failure that it is a consequence of
constexpr milliseconds kAloneWaits{5'000};  // for ranks to save, when the launch is gone

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {}
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  LaunchEnd run();

 private:
  struct Rank {
    pid_t process = -1;
    bool runs = false;
    RankLog log;
    std::unique_ptr<OutputRelay> lines;
    int flight = -1;  // its recorder's file, and a mapping of it
    const flight::Ring* ring = nullptr;
    std::optional<Clock::time_point> stopped;  // since when
  };
  struct Failure {
    std::size_t rank;  // among this host's
    int status;
    std::string why;  // the kernel's further knowledge
  };

  void start_all();
  void start(int local, const RankPlaces& places, const std::vector<int>& cores);
  void wait_for_something();
  void take_signals();
  void take_orders();
  void take_signal(int number, bool is_order);
  void reap();
  void note_stop(std::size_t rank, int status);
  void note_end(std::size_t rank, int status, const rusage& used);
  void look_back();
  void write_flight(std::size_t rank, const std::string& text) const;
  [[nodiscard]] std::vector<std::size_t> stopped_ranks() const;
  void look_at_clock();
  void end_others();
  void ask_to_end(int number);
  void signal_ranks(int number);
  void relay();
  void relay_rest();
  [[nodiscard]] bool any_runs() const;
  [[nodiscard]] LaunchEnd report();
  /// The rank's number in the whole run, as people know it.
  [[nodiscard]] int number_of(std::size_t local) const {
    return options_.places.first + static_cast<int>(local);
  }
  [[nodiscard]] std::optional<int> blamed_by(std::size_t rank) const;
  template <class... Args>
  void tell(fmt::format_string<Args...> what, Args&&... args) const {
    if (options_.link != nullptr) {
      options_.link->tell(what, std::forward<Args>(args)...);
    }
  }

  const LaunchOptions& options_;
  ChildSignals signals_;
  std::vector<Rank> ranks_;
  HeldPort port_;  // for as long as ranks may meet there
  std::optional<Failure> failure_;
  std::optional<int> report_lost_;  // by this rank
  bool looked_back_ = false;
  std::vector<int> at_fault_;  // ranks that are stopped, or that the others wait for
  std::string fault_;          // in words
  std::uint64_t oom_kills_ = limits::oom_kills();
  Output& output_ = Output::of_process();
  EndRequests requests_;
  int interrupted_ = 0;                      // by this signal
  bool alone_ = false;                       // a node whose link is lost
  std::optional<Clock::time_point> end_at_;  // the others are asked to end then
  std::optional<Clock::time_point> kill_at_;
};

Launcher::~Launcher() {
  signals_.end_children();
  for (Rank& rank : ranks_) {
    rank.lines.reset();
    if (rank.flight >= 0) {
      ::close(rank.flight);
    }
  }
}

LaunchEnd Launcher::run() {
  start_all();
  while (any_runs()) {
    wait_for_something();
    take_signals();
    take_orders();
    reap();
    look_at_clock();
    relay();
  }
  signals_.end_children();
  relay_rest();
  return report();
}

void Launcher::start_all() {
  output_.hurry(false);
  RankPlaces places = options_.places;
  if (places.port == 0) {
    port_ = hold_port(places.address);
    places.port = port_.port;
  }
  if (places.secret.empty()) {
    places.secret = random_secret();
  }
  std::vector<std::vector<int>> cores(static_cast<std::size_t>(places.here));
  if (options_.settings.bind_cores_to_rank) {
    cores = split_cores(places.here);
  }
  std::error_code error;
  if (!options_.settings.log_dir.empty()) {
    std::filesystem::create_directories(options_.settings.log_dir, error);
  }
  for (int local = 0; local < places.here; ++local) {
    start(local, places, cores[static_cast<std::size_t>(local)]);
  }
}

void Launcher::start(int local, const RankPlaces& places, const std::vector<int>& cores) {
  Rank& rank = ranks_.emplace_back();
  const int number = places.first + local;
  if (!options_.settings.log_dir.empty()) {
    rank.log = RankLog(fmt::format("{}/rank_{}.log", options_.settings.log_dir, number),
                       places.restart != 0);
  }
  rank.flight = flight::make_ring_file();
  rank.ring = flight::map_ring(rank.flight);
  const std::string prefix = options_.host.empty() ? fmt::format("[{}] ", number)
                                                   : fmt::format("[{}:{}] ", options_.host, number);
  auto variables = rank_variables(places, local);
  // A log has whole lines.
  if (const int columns = columns_beside(prefix.size());
      columns > 0 && options_.settings.log_dir.empty()) {
    variables.emplace_back("TANDEM_COLUMNS", std::to_string(columns));
  }
  const ChildProcess made = start_child({.command = options_.settings.command,
                                         .variables = std::move(variables),
                                         .cores = cores,
                                         .flight = rank.flight,
                                         .mark = signals_.mark(),
                                         .dies_first = true});
  rank.process = made.process;
  rank.runs = true;
  rank.lines = std::make_unique<OutputRelay>(
      made.output, made.errors,
      [this, index = ranks_.size() - 1, prefix](int to, std::string_view line) {
        output_.write(to, prefix + std::string(line));
        ranks_[index].log.write(line);
      });
}

void Launcher::wait_for_something() {
  std::vector<pollfd> looked_at = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  auto until = Clock::time_point::max();
  if (options_.link != nullptr && !options_.link->is_lost()) {
    looked_at.push_back({.fd = options_.link->descriptor(), .events = POLLIN, .revents = 0});
    until = options_.link->deadline();
  }
  output_.watch(looked_at);
  if (output_.takes_more()) {
    for (const Rank& rank : ranks_) {
      rank.lines->watch(looked_at);
    }
  }
  poll_until(looked_at,
             std::min({until, output_.next_poll(), end_at_.value_or(Clock::time_point::max()),
                       kill_at_.value_or(Clock::time_point::max())}));
}

// Ranks wait for a reader that is behind: what they write stays in their pipes.
void Launcher::relay() {
  output_.flush();
  for (const Rank& rank : ranks_) {
    if (output_.takes_more()) {
      rank.lines->relay();
    }
  }
}

void Launcher::relay_rest() {
  for (const Rank& rank : ranks_) {
    output_.wait_for_room();
    rank.lines->relay_rest();
  }
}

void Launcher::take_signals() {
  while (const std::optional<int> number = signals_.next()) {
    take_signal(*number, false);
  }
}

// A node takes the launch's signals over the link; the link's end is one.
void Launcher::take_orders() {
  NodeLink* const link = options_.link;
  if (link == nullptr) {
    return;
  }
  while (const std::optional<std::string> order = link->next()) {
    constexpr std::string_view kSignal = "signal ";
    if (order->starts_with(kSignal)) {
      take_signal(std::atoi(order->c_str() + kSignal.size()), true);
    }
  }
  if (link->is_lost() && !std::exchange(alone_, true)) {
    interrupted_ = SIGTERM;
    ask_to_end(SIGTERM);
    kill_at_ = std::min(*kill_at_, Clock::now() + kAloneWaits);
  }
}

// The ranks end themselves as they see fit; a second request ends them at once. A launch on several
// hosts has counted its signals before it hands them on.
void Launcher::take_signal(int number, bool is_order) {
  if (!is_passed_on(number)) {
    return;
  }
  if (number == SIGUSR1) {  // "save": to all of them, and nothing ends
    signal_ranks(number);
    return;
  }
  if (interrupted_ == 0) {
    interrupted_ = number;
    (void)requests_.note(number, Clock::now());
    output_.be_brief();
    ask_to_end(number);
  } else if (is_order || requests_.note(number, Clock::now()) == EndRequests::Means::kEndAtOnce) {
    kill_at_ = Clock::now();
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
      note_stop(number, status);
      if (!WIFSTOPPED(status) && !WIFCONTINUED(status)) {
        ranks_[number].runs = false;
        note_end(number, status, used);
      }
    }
  }
}

// It is said at once, and decides nothing: the one that stopped it may let it go on.
void Launcher::note_stop(std::size_t rank, int status) {
  auto& stopped = ranks_[rank].stopped;
  const auto now = Clock::now();
  if (WIFSTOPPED(status) && !stopped) {
    stopped = now;
    tell("stopped {}", number_of(rank));
    say("launch: rank {} is stopped by signal {} ({}); the others wait for it", number_of(rank),
        WSTOPSIG(status), ::strsignal(WSTOPSIG(status)));
  } else if ((WIFCONTINUED(status) || WIFEXITED(status)) && stopped) {
    if (!kill_at_) {  // later it runs in order to end
      tell("runs {}", number_of(rank));
      say("launch: rank {} runs again after {:.1f} s", number_of(rank),
          std::chrono::duration<double>(now - *stopped).count());
    }
    stopped.reset();
  }
}

void Launcher::note_end(std::size_t rank, int status, const rusage& used) {
  const int code = code_of(status);
  ranks_[rank].lines->relay_rest();  // its last words come before its end
  if (code == 0 || interrupted_ != 0 ||
      kill_at_) {  // after that they end because they were asked to
    return;
  }
  if (code ==
      static_cast<int>(ExitCode::kReportLost)) {  // it is done, and the others end by themselves
    report_lost_ = report_lost_.value_or(number_of(rank));
    return;
  }
  tell("failed {} {} {}", number_of(rank), code, blamed_by(rank).value_or(-1));
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

/// A failure of this is said, and changes nothing.
void Launcher::write_flight(std::size_t rank, const std::string& text) const {
  try {
    RankLog(fmt::format("{}/flight_rank_{}.txt", options_.settings.log_dir, number_of(rank)), false)
        .write(text);
  } catch (const Error& error) {
    say("launch: {}", error.what());
  }
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
    if (!options_.settings.log_dir.empty() && !rings.back().empty()) {
      write_flight(number, flight::describe(rings.back(), now_ns));
    }
  }
  const auto explanation = flight::explain(rings, now_ns);
  const auto& last = rings[failure_->rank];
  const bool by_a_peer = is_witness(code_of(failure_->status));
  const bool is_one_host = options_.places.hosts == 1;  // the launcher of several knows more
  const std::optional<int> blamed = blamed_by(failure_->rank);
  for (const std::size_t rank : stopped_ranks()) {
    at_fault_.push_back(number_of(rank));
  }
  fault_ = at_fault_.empty() ? "held the others up" : "is stopped";
  if (at_fault_.empty() && by_a_peer && is_one_host) {
    if (blamed) {
      at_fault_ = {*blamed};
    } else if (explanation) {
      at_fault_.assign(explanation->absent.begin(), explanation->absent.end());
    }
  }
  if (by_a_peer && explanation && is_one_host) {
    say("launch: {}", explanation->text);
  } else if ((WIFSIGNALED(failure_->status) || by_a_peer) && !last.empty()) {
    say("launch: of rank {}, {}", number_of(failure_->rank), flight::last_of(last, now_ns));
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
  say("launch: rank {} {}; ending the other ranks", number_of(failure_->rank),
      describe_end(failure_->status));
  look_back();
  ask_to_end(SIGTERM);
}

void Launcher::ask_to_end(int number) {
  signal_ranks(number);
  signal_ranks(SIGCONT);  // a stopped one gets it only then
  output_.hurry(true);    // unread output may not keep a rank from saving
  kill_at_ = Clock::now() + options_.settings.grace;
}

void Launcher::signal_ranks(int number) {
  for (const Rank& rank : ranks_) {
    if (rank.runs) {
      (void)::kill(-rank.process, number);
    }
  }
}

bool Launcher::any_runs() const { return std::ranges::any_of(ranks_, &Rank::runs); }

/// All that the rank wrote down before its end, with all ranks' numbers.
std::optional<int> Launcher::blamed_by(std::size_t rank) const {
  const flight::Ring* const ring = ranks_[rank].ring;
  const auto blamed = ring != nullptr ? flight::blamed_by(ring->entries()) : std::nullopt;
  return blamed && *blamed < static_cast<std::uint64_t>(options_.places.world)
             ? std::optional(static_cast<int>(*blamed))
             : std::nullopt;
}

LaunchEnd Launcher::report() {
  if (!failure_ && interrupted_ == 0 && report_lost_) {
    return {.code = static_cast<int>(ExitCode::kReportLost),
            .failure = fmt::format("rank {} of {} trained and saved, and lost a report: see its "
                                   "output",
                                   *report_lost_, options_.places.world)};
  }
  if (!failure_) {
    return {.code = interrupted_ != 0 ? 128 + interrupted_ : 0,
            .failure = "",
            .interrupted = interrupted_ != 0};
  }
  look_back();
  LaunchEnd end{.code = code_of(failure_->status), .failure = "", .interrupted = interrupted_ != 0};
  const bool others_at_fault = is_witness(end.code) && !at_fault_.empty();
  const int rank = number_of(failure_->rank);
  const int shown = others_at_fault ? at_fault_.front() : rank;
  const std::string log = options_.settings.log_dir.empty()
                              ? std::string("its output")
                              : fmt::format("{}/rank_{}.log", options_.settings.log_dir, shown);
  const std::string became = describe_end(failure_->status) + failure_->why;
  const int world = options_.places.world;
  end.failure = others_at_fault ? fmt::format("rank {} of {} {}: rank {} {}; see {}",
                                              fmt::join(at_fault_, " and rank "), world, fault_,
                                              rank, became, log)
                                : fmt::format("rank {} of {} {}; see {}", rank, world, became, log);
  return end;
}

}  // namespace

LaunchEnd launch(const LaunchOptions& options) { return Launcher(options).run(); }

}  // namespace tandem
