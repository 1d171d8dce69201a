// tools/launch/launcher.hpp — N ranks of a program on this host, from start to end of the last
// process.
//
// Each rank leads a process group of its own; the launcher is the reaper of whatever they leave
// behind, and nothing of them outlives it. Their lines come out whole, with the rank before them.
// When a rank fails, the others are ended; who failed first is named. A rank that ended because a
// peer did (exit code 4) is a witness, and named only when no other rank failed. Knows nothing of
// LibTorch. Blocks, on the process's main thread; one at a time.
#pragma once

#include <string>

#include "tools/launch/launch_words.hpp"
#include "tools/launch/rank_process.hpp"

namespace tandem {

class NodeLink;

struct LaunchOptions {
  RankPlaces places;  // port 0, no secret: made here
  std::string host;   // before the rank in each line
  RankSettings settings;
  NodeLink* link = nullptr;  // to the launch on several hosts that this is a part of
};

/// Starts the ranks of this host and waits for their end. Throws a user error when nothing can be
/// started.
[[nodiscard]] LaunchEnd launch(const LaunchOptions& options);

}  // namespace tandem
