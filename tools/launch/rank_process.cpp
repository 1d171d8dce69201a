#include "tools/launch/rank_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"
#include "tools/launch/child_signals.hpp"

namespace tandem {
namespace {

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      throw failure(ExitCode::kFailure, "launch", "no pipe: {}", std::strerror(errno));
    }
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close(int end) {
    if (ends[end] >= 0) {
      ::close(std::exchange(ends[end], -1));
    }
  }
  int release(int end) { return std::exchange(ends[end], -1); }
};

// The kernel chooses among those of a control group by their memory and this number: a launcher
// that it ends could neither say why a rank ended nor restart one.
void offer_to_the_oom_killer() {
  constexpr int kRaised = 500;
  constexpr int kHighest = 1000;
  char text[16] = {};
  const OwnedDescriptor file(::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC));
  if (file.get() < 0 || ::read(file.get(), text, sizeof(text) - 1) <= 0) {
    return;
  }
  const std::string raised = std::to_string(std::min(kHighest, std::atoi(text) + kRaised));
  (void)!::pwrite(file.get(), raised.data(), raised.size(), 0);
}

// Between fork and exec. Says what failed through `report`, which closes by itself when the program
// runs.
[[noreturn]] void become(const ChildStart& start, pid_t launcher, int input, int output, int errors,
                         int report) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) {
    ::_exit(1);  // it died before that was set
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  if (!start.cores.empty()) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (const int core : start.cores) {
      CPU_SET(static_cast<std::size_t>(core), &cpus);
    }
    (void)::sched_setaffinity(0, sizeof(cpus), &cpus);
  }
  if (start.flight >= 0 && ::fcntl(start.flight, F_SETFD, 0) == 0) {
    ::setenv("TANDEM_FLIGHT_FD", std::to_string(start.flight).c_str(), 1);
  }
  for (const auto& [name, value] : start.variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  if (!start.mark.empty()) {
    ::setenv(kLaunchMark, start.mark.c_str(), 1);
  }
  if (start.dies_first) {
    offer_to_the_oom_killer();
  }
  ::dup2(start.is_written_to ? input : ::open("/dev/null", O_RDONLY), 0);
  ::dup2(output, 1);
  ::dup2(errors, 2);
  std::vector<char*> arguments;
  for (const std::string& argument : start.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  (void)!::write(report, &error, sizeof(error));
  ::_exit(127);
}

}  // namespace

ChildProcess start_child(const ChildStart& start) {
  Pipe input;
  Pipe output;
  Pipe errors;
  Pipe report;
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) {
    throw failure(ExitCode::kFailure, "launch", "no process: {}", std::strerror(errno));
  }
  if (process == 0) {
    become(start, launcher, input.ends[0], output.ends[1], errors.ends[1], report.ends[1]);
  }
  ::setpgid(process, process);  // here, too: whichever of the two comes first
  report.close(1);
  int error = 0;
  if (::read(report.ends[0], &error, sizeof(error)) == sizeof(error)) {
    throw user_error("launch", "cannot start {}: {}", start.command.front(), std::strerror(error));
  }
  return {process, output.release(0), errors.release(0),
          start.is_written_to ? input.release(1) : -1};
}

int columns_beside(std::size_t prefix) {
  winsize size{};
  const bool has = ::isatty(1) == 1 && ::ioctl(1, TIOCGWINSZ, &size) == 0;
  return has ? std::max(0, size.ws_col - static_cast<int>(prefix)) : 0;
}

std::vector<std::pair<std::string, std::string>> rank_variables(const RankPlaces& places,
                                                                int local) {
  const auto text = [](int number) { return std::to_string(number); };
  std::vector<std::pair<std::string, std::string>> variables = {
      {"RANK", text(places.first + local)},
      {"WORLD_SIZE", text(places.world)},
      {"LOCAL_RANK", text(local)},
      {"LOCAL_WORLD_SIZE", text(places.here)},
      {"GROUP_RANK", text(places.host)},
      {"GROUP_WORLD_SIZE", text(places.hosts)},
      {"TORCHELASTIC_RESTART_COUNT", text(places.restart)},
      {"TORCHELASTIC_MAX_RESTARTS", text(places.max_restarts)},
      {"MASTER_ADDR", places.address},
      {"MASTER_PORT", text(places.port)},
      {"TANDEM_RUN_SECRET", places.secret}};
  if (places.first_world != 0 && places.first_world != places.world) {
    variables.emplace_back("TANDEM_FIRST_WORLD_SIZE", text(places.first_world));
  }
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    variables.emplace_back("OMP_NUM_THREADS",
                           text(std::max(1, machine::usable_cpus() / places.here)));
  }
  return variables;
}

std::vector<std::vector<int>> split_cores(int ranks) {
  const std::vector<machine::Core> cores = machine::cores();
  const std::size_t count = cores.size();
  const auto parts = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> split(parts);
  for (std::size_t rank = 0; rank < parts && count > 0; ++rank) {
    const std::size_t begin = count >= parts ? rank * count / parts : rank % count;
    const std::size_t end = count >= parts ? (rank + 1) * count / parts : begin + 1;
    for (std::size_t core = begin; core < end; ++core) {
      split[rank].insert(split[rank].end(), cores[core].cpus.begin(), cores[core].cpus.end());
    }
  }
  return split;
}

std::string random_secret() {
  std::array<unsigned char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw failure(ExitCode::kFailure, "launch", "no random bytes: {}", std::strerror(errno));
  }
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

HeldPort hold_port(const std::string& address, int wanted) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(wanted).c_str(), &hints, &found) != 0) {
    throw user_error("launch", "{} is no IP address; give one of rank 0's host", address);
  }
  OwnedDescriptor held(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in6 bound{};  // the port lies where IPv4's does
  socklen_t length = sizeof(bound);
  const bool is_held = ::setsockopt(held.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                       ::bind(held.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                       ::getsockname(held.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  if (!is_held) {
    throw user_error("launch",
                     "no port {} of {}: {}; set --master_addr to an address of rank 0's "
                     "host, and --master_port to a free port of it, or leave them out",
                     wanted == 0 ? std::string("that is free") : std::to_string(wanted), address,
                     std::strerror(error));
  }
  return {.port = ntohs(bound.sin6_port), .descriptor = std::move(held)};
}

}  // namespace tandem
