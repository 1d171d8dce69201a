// tools/launch/rank_process.hpp — starting one rank: its variables, cores, process group and pipes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace tandem {

struct RankStart {
  const std::vector<std::string>& command;
  std::vector<std::pair<std::string, std::string>> variables;  // beside the launcher's own
  std::vector<int> cores;                                      // empty: not bound
  int flight = -1;                                             // its flight recorder's file
};

struct RankProcess {
  pid_t process = -1;
  int output = -1;  // reading ends
  int errors = -1;
};

/// Throws a user error when the program cannot be started. Signals that the launcher has blocked
/// are not in the rank.
[[nodiscard]] RankProcess start_rank(const RankStart& start);

/// What torchrun would tell rank `rank` of `ranks`, and the run's secret.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> rank_variables(
    int rank, int ranks, int port, const std::string& secret);
/// The CPUs of each rank: whole cores, neighbours together; ranks share where cores are fewer.
[[nodiscard]] std::vector<std::vector<int>> split_cores(int ranks);
/// 256 random bits as hexadecimal digits: what the ranks prove to each other that they know.
[[nodiscard]] std::string random_secret();
/// A port of the loopback that no other program is given while `descriptor`, the caller's to close,
/// is open. It is bound and not listened at, so rank 0, which says SO_REUSEADDR too, can have it.
struct HeldPort {
  int port = 0;
  int descriptor = -1;
};
[[nodiscard]] HeldPort hold_port();

}  // namespace tandem
