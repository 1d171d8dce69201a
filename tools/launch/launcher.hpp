// tools/launch/launcher.hpp — N ranks of a program on this host, from start to end of the last
// process.
//
// Each rank leads a process group of its own; the launcher is the reaper of whatever they leave
// behind, and nothing of them outlives it. Their lines come out whole, with the rank before them.
// When a rank fails, the others are ended; who failed first is named. A rank that ended because a
// peer did (exit code 4) is a witness, and named only when no other rank failed. Knows nothing of
// LibTorch. Blocks; once per process, on its main thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tandem {

struct LaunchOptions {
  int ranks = 1;
  std::string log_dir;                                         // rank_N.log in it, too; empty: none
  bool bind_cores_to_rank = false;                             // each rank gets cores of its own
  std::chrono::milliseconds grace = std::chrono::seconds(30);  // between SIGTERM and SIGKILL
  std::vector<std::string> command;                            // program and arguments
};

/// Returns what the launcher should exit with: 0, or the code of the rank that failed first (128 +
/// signal). Throws a user error when nothing can be started.
[[nodiscard]] int launch(const LaunchOptions& options);

}  // namespace tandem
