#include "tools/launch/rank_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"

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

// Between fork and exec. Says what failed through `report`, which closes by itself when the program
// runs.
[[noreturn]] void become(const RankStart& start, pid_t launcher, int output, int errors,
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
  const int input = ::open("/dev/null", O_RDONLY);
  ::dup2(input, 0);
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

RankProcess start_rank(const RankStart& start) {
  Pipe output;
  Pipe errors;
  Pipe report;
  const pid_t launcher = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) {
    throw failure(ExitCode::kFailure, "launch", "no process: {}", std::strerror(errno));
  }
  if (process == 0) {
    become(start, launcher, output.ends[1], errors.ends[1], report.ends[1]);
  }
  ::setpgid(process, process);  // here, too: whichever of the two comes first
  report.close(1);
  int error = 0;
  if (::read(report.ends[0], &error, sizeof(error)) == sizeof(error)) {
    throw user_error("launch", "cannot start {}: {}", start.command.front(), std::strerror(error));
  }
  return {process, output.release(0), errors.release(0)};
}

std::vector<std::pair<std::string, std::string>> rank_variables(int rank, int ranks, int port,
                                                                const std::string& secret) {
  const std::string world = std::to_string(ranks);
  std::vector<std::pair<std::string, std::string>> variables = {
      {"RANK", std::to_string(rank)},       {"WORLD_SIZE", world},
      {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", world},
      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port)},
      {"TANDEM_RUN_SECRET", secret}};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    variables.emplace_back("OMP_NUM_THREADS",
                           std::to_string(std::max(1, machine::usable_cpus() / ranks)));
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

HeldPort hold_port() {
  const int held = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (::setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      ::bind(held, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::getsockname(held, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const int error = errno;
    ::close(held);
    throw failure(ExitCode::kFailure, "launch", "no free port: {}", std::strerror(error));
  }
  return {.port = ntohs(address.sin_port), .descriptor = held};
}

}  // namespace tandem
