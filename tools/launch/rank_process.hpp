// tools/launch/rank_process.hpp — starting one rank: its variables, cores, process group and pipes.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

struct ChildStart {
  const std::vector<std::string>& command;
  std::vector<std::pair<std::string, std::string>> variables;  // beside the launcher's own
  std::vector<int> cores;                                      // empty: not bound
  int flight = -1;                                             // its flight recorder's file
  std::string mark = "";                                       // its launcher's (child_signals.hpp)
  bool dies_first = false;     // where memory ends, it is chosen before its launcher
  bool is_written_to = false;  // else its input is empty
};

struct ChildProcess {
  pid_t process = -1;
  int output = -1;  // reading ends
  int errors = -1;
  int input = -1;  // the writing end
};

/// A rank, or the ssh to a host. Throws a user error when the program cannot be started. Signals
/// that the launcher has blocked are not in the child.
[[nodiscard]] ChildProcess start_child(const ChildStart& start);

/// The settings that all ranks of a launch share.
struct RankSettings {
  std::string log_dir;                                         // rank_N.log in it, too; empty: none
  bool bind_cores_to_rank = false;                             // each rank gets cores of its own
  std::chrono::milliseconds grace = std::chrono::seconds(30);  // between SIGTERM and SIGKILL
  std::vector<std::string> command;                            // program and arguments
};

/// A rank's place in a run, and where its ranks meet.
struct RankPlaces {
  int first = 0;  // rank of this host's first one
  int here = 1;   // ranks on this host
  int world = 1;
  int host = 0;  // number of this one
  int hosts = 1;
  int restart = 0;
  int max_restarts = 0;
  int first_world = 0;  // ranks before any host was left out; 0: the same
  std::string address = "127.0.0.1";
  int port = 0;
  std::string secret;
};
/// The columns of this process's terminal that are left beside a prefix; 0: it has no terminal.
[[nodiscard]] int columns_beside(std::size_t prefix);

/// The variables that torchrun would give this host's rank `local`, and the run's secret.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> rank_variables(
    const RankPlaces& places, int local);
/// The CPUs of each rank: whole cores, neighbours together; ranks share where cores are fewer.
[[nodiscard]] std::vector<std::vector<int>> split_cores(int ranks);
/// 256 random bits as hexadecimal digits: what the ranks prove to each other that they know.
[[nodiscard]] std::string random_secret();
/// A port of `address`, an IP address of this host, that no other program is given while
/// `descriptor` is open. It is bound and not listened at, so rank 0, which says SO_REUSEADDR too,
/// can have it. `wanted` 0: any that is free. Throws a user error when it cannot be had.
struct HeldPort {
  int port = 0;
  OwnedDescriptor descriptor;
};
[[nodiscard]] HeldPort hold_port(const std::string& address, int wanted = 0);

}  // namespace tandem
