// tools/launch/launch_flags.hpp — the flags of `tandem launch`, and the launch that they ask for,
// begun anew where that may help.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace tandem {

struct LaunchFlags {
  int ranks = 0;
  std::string hostfile;
  std::string hosts;
  std::string include;
  std::string exclude;
  std::string master_addr;
  int master_port = 0;
  std::string log_dir;
  bool bind_cores_to_rank = false;
  double grace_s = 30;
  int max_restarts = 0;
  bool node = false;  // a host's part, at the other end of ssh

  void add_to(CLI::App& app);
};

/// `command`: the program and its arguments. Returns what the launcher should exit with. Throws a
/// user error for flags that cannot be meant.
[[nodiscard]] int run_launch(const LaunchFlags& flags, std::vector<std::string> command);

}  // namespace tandem
