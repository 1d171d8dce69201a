#include "tools/launch/launch_flags.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include "runtime/util/error.hpp"
#include "runtime/util/seconds_setting.hpp"
#include "tools/launch/child_signals.hpp"
#include "tools/launch/hosts_launcher.hpp"
#include "tools/launch/launcher.hpp"
#include "tools/launch/node.hpp"
#include "tools/launch/node_link.hpp"
#include "tools/launch/output.hpp"
#include "tools/launch/rank_process.hpp"

namespace tandem {
namespace {

constexpr int kMostRanks = 1024;  // per host
constexpr int kMostRestarts = 1000;

std::chrono::milliseconds grace_of(double seconds) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

RankSettings settings_of(const LaunchFlags& flags, std::vector<std::string> command) {
  if (!(flags.grace_s >= 0) || flags.grace_s > 1e6) {
    throw user_error("flags", "--grace_s is {}; it takes seconds from 0 to 1e6", flags.grace_s);
  }
  return {.log_dir = flags.log_dir,
          .bind_cores_to_rank = flags.bind_cores_to_rank,
          .grace = grace_of(flags.grace_s),
          .command = std::move(command)};
}

// A failure by the user's input, the memory or the state of the run comes again the next time;
// a run that is trained and saved, and lost a report, is done.
bool may_help(int code) {
  constexpr ExitCode kFinal[] = {ExitCode::kUserInput, ExitCode::kRefused, ExitCode::kBadState,
                                 ExitCode::kReportLost};
  return std::ranges::none_of(kFinal,
                              [code](ExitCode one) { return code == static_cast<int>(one); });
}

/// How often a launch begins anew, and how.
struct Restarts {
  int most = 0;
  std::function<LaunchEnd(int restart)> start;
  /// Leaves out what the end of a start shows to be lost. In words what is left, empty: nothing.
  std::function<std::string(const LaunchEnd& end)> leave_out_lost;
};

// A host that is not there when ranks are to begin is left out without a restart: none began. That
// happens once for each host, at most.
int repeat(const Restarts& restarts) {
  const int most = restarts.most;
  for (int restart = 0;;) {
    const LaunchEnd end = restarts.start(restart);
    const bool is_restart = end.began || end.lost_hosts.empty();
    const bool all_used = is_restart && restart == most && most > 0;
    const bool is_last =
        end.failure.empty() || end.interrupted || !may_help(end.code) || most == 0 || all_used;
    const std::string rest = is_last ? "" : restarts.leave_out_lost(end);
    if (rest.empty()) {
      if (!end.failure.empty()) {
        say("error: [launch] {}{}", end.failure,
            all_used  ? fmt::format("; restarts: {0} of {0} used", most)
            : is_last ? ""
                      : "; no host is left");
      }
      return end.code;
    }
    if (const auto signal = ChildSignals::end_pending()) {
      return 128 + *signal;
    }
    restart += is_restart ? 1 : 0;
    say("launch: {}; {} {}", end.failure,
        is_restart ? fmt::format("restart {} of {}", restart, most) : "starting anew", rest);
  }
}

std::string ranks_text(int ranks) {
  return fmt::format("with {} rank{}", ranks, ranks == 1 ? "" : "s");
}

std::vector<HostSlots> hosts_of(const LaunchFlags& flags) {
  if (!flags.hostfile.empty() && !flags.hosts.empty()) {
    throw user_error("flags", "--hostfile and --hosts contradict each other; give one of them");
  }
  return choose_slots(
      flags.hosts.empty() ? read_hostfile(flags.hostfile) : parse_hosts(flags.hosts), flags.include,
      flags.exclude);
}

int ranks_of(const std::vector<HostSlots>& hosts) {
  std::size_t ranks = 0;
  for (const HostSlots& host : hosts) {
    ranks += host.slots.size();
  }
  return static_cast<int>(ranks);
}

/// In words what is left; empty where nothing is.
std::string leave_out(HostsLaunchOptions& options, const std::vector<std::string>& lost) {
  const auto is_lost = [&](const HostSlots& host) {
    return std::ranges::find(lost, host.name) != lost.end();
  };
  if (is_lost(options.hosts.front())) {
    options.master_address.clear();  // it was an address of that host
  }
  std::erase_if(options.hosts, is_lost);
  if (options.hosts.empty()) {
    return "";
  }
  std::vector<std::string_view> names;
  std::ranges::transform(options.hosts, std::back_inserter(names), &HostSlots::name);
  constexpr std::size_t kMostNames = 8;
  return fmt::format("{} on {}{}", ranks_text(ranks_of(options.hosts)),
                     names.size() > kMostNames
                         ? fmt::format("{} hosts", names.size())
                         : fmt::format("host {}", fmt::join(names, " and host ")),
                     lost.empty() ? "" : fmt::format(", without {}", fmt::join(lost, ", ")));
}

/// Each host's ssh has three pipes.
void check_descriptors(std::size_t hosts) {
  constexpr std::size_t kOfEach = 3;
  constexpr std::size_t kOthers = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && hosts * kOfEach + kOthers > limit.rlim_cur) {
    throw user_error("launch",
                     "{} hosts need {} open files, this process may have {}; raise `ulimit -n`, or "
                     "choose hosts by --include",
                     hosts, hosts * kOfEach + kOthers, limit.rlim_cur);
  }
}

int run_on_hosts(const LaunchFlags& flags, std::vector<std::string> command) {
  if (flags.ranks != 0) {
    throw user_error("flags", "-n is of this host alone; with hosts, their slots say how many");
  }
  HostsLaunchOptions options{
      .hosts = hosts_of(flags),
      .master_address = flags.master_addr,
      .master_port = flags.master_port,
      .settings = settings_of(flags, std::move(command)),
      .start_timeout = seconds_setting("TANDEM_RENDEZVOUS_TIMEOUT_S", std::chrono::seconds(300)),
      .restart = 0,
      .max_restarts = flags.max_restarts,
      .variables = variables_for_hosts()};
  for (auto& variable : read_deepspeed_env()) {
    options.variables.push_back(std::move(variable));
  }
  options.first_world = ranks_of(options.hosts);
  const std::size_t prefix =
      std::ranges::max(options.hosts, {}, [](const HostSlots& host) { return host.name.size(); })
          .name.size() +
      fmt::format("[:{}] ", options.first_world - 1).size();
  if (const int columns = columns_beside(prefix); columns > 0 && flags.log_dir.empty()) {
    options.variables.emplace_back("TANDEM_COLUMNS", std::to_string(columns));
  }
  check_descriptors(options.hosts.size());
  return repeat(
      {.most = flags.max_restarts,
       .start =
           [&](int restart) {
             options.restart = restart;
             return launch_on_hosts(options);
           },
       .leave_out_lost = [&](const LaunchEnd& end) { return leave_out(options, end.lost_hosts); }});
}

int run_here(const LaunchFlags& flags, std::vector<std::string> command) {
  if (flags.ranks < 1 || flags.ranks > kMostRanks) {
    throw user_error("flags", "-n is {}; it takes 1 to {} ranks", flags.ranks, kMostRanks);
  }
  LaunchOptions options{.places = {.here = flags.ranks,
                                   .world = flags.ranks,
                                   .max_restarts = flags.max_restarts,
                                   .port = flags.master_port},
                        .host = "",
                        .settings = settings_of(flags, std::move(command))};
  if (!flags.master_addr.empty()) {
    options.places.address = flags.master_addr;
  }
  return repeat({.most = flags.max_restarts,
                 .start =
                     [&](int restart) {
                       options.places.restart = restart;
                       return launch(options);
                     },
                 .leave_out_lost = [&](const LaunchEnd&) { return ranks_text(flags.ranks); }});
}

/// Whatever becomes of the launch, what it says is read, or counted.
struct FinishedOutput {
  std::chrono::milliseconds patience;
  ~FinishedOutput() { Output::of_process().finish(patience); }
};

}  // namespace

void LaunchFlags::add_to(CLI::App& app) {
  app.add_option("-n,--ranks", ranks, "how many ranks on this host");
  app.add_option("-H,--hostfile", hostfile,
                 "hosts, by ssh: a file of lines NAME slots=N, a rank for each slot");
  app.add_option("--hosts", hosts, "the same without a file: a:2,b:2");
  app.add_option("-i,--include", include,
                 "of these hosts, only some slots: NAME[:SLOT[,SLOT...]][@NAME...]");
  app.add_option("-e,--exclude", exclude, "of these hosts, all slots but some");
  app.add_option("--master_addr", master_addr,
                 "IP address of the first host at which the ranks meet (one of several hosts: the "
                 "one by which ssh came, or TANDEM_INTERFACE's; else the loopback)");
  app.add_option("--master_port", master_port, "port there; 0: one that is free");
  app.add_option(
      "--max_restarts", max_restarts,
      "how many times to start all ranks again after a failure, on the hosts that are left; the "
      "trainers go on from the last checkpoint of the run");
  app.add_option("--log_dir", log_dir,
                 "also write each rank's lines to DIR/rank_N.log, and after a failure its last "
                 "operations to DIR/flight_rank_N.txt");
  app.add_flag("--bind_cores_to_rank", bind_cores_to_rank, "give each rank cores of its own");
  app.add_option("--grace_s", grace_s, "seconds between asking the ranks to end and killing them")
      ->capture_default_str();
  app.add_flag("--node", node)->group("");  // ours, at the other end of ssh
}

int run_launch(const LaunchFlags& flags, std::vector<std::string> command) {
  if (flags.node) {
    const FinishedOutput finished{kSilence *
                                  std::chrono::ceil<std::chrono::milliseconds>(heartbeat_period())};
    return run_node();
  }
  const bool on_hosts = !flags.hostfile.empty() || !flags.hosts.empty();
  if (!on_hosts && (!flags.include.empty() || !flags.exclude.empty())) {
    throw user_error("flags",
                     "--include and --exclude choose among hosts; give --hostfile or --hosts");
  }
  if (!on_hosts && flags.ranks == 0) {
    throw user_error("flags", "launch has no ranks; give -n N, --hostfile F or --hosts a:2,b:2");
  }
  if (command.empty()) {
    throw user_error("flags", "launch has no program; give it behind --: launch -n 2 -- PROGRAM");
  }
  if (flags.master_port < 0 || flags.master_port > 65'535) {
    throw user_error("flags", "--master_port is {}; it takes 0 to 65535", flags.master_port);
  }
  if (flags.max_restarts < 0 || flags.max_restarts > kMostRestarts) {
    throw user_error("flags", "--max_restarts is {}; it takes 0 to {}", flags.max_restarts,
                     kMostRestarts);
  }
  const FinishedOutput finished{
      std::max<std::chrono::milliseconds>(grace_of(flags.grace_s), Output::kPatience)};
  return on_hosts ? run_on_hosts(flags, std::move(command)) : run_here(flags, std::move(command));
}

}  // namespace tandem
