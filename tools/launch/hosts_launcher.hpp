// tools/launch/hosts_launcher.hpp — a launch on several hosts: one ssh to each, where run_node()
// does what a launch on one host does.
//
// No rank starts before every host is there, has the program, and rank 0's has a port to meet at.
// The first rank or host that fails is named and the others are ended; a host whose connection ends
// has failed. A rank that ended because a peer did is a witness, as on one host. The variables of a
// rank, the run's secret among them, go through ssh's standard input and on no command line.
// Blocks, on the process's main thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tools/launch/host_list.hpp"
#include "tools/launch/launch_words.hpp"
#include "tools/launch/rank_process.hpp"

namespace tandem {

struct HostsLaunchOptions {
  std::vector<HostSlots> hosts;
  std::string master_address;  // empty: rank 0's host finds one
  int master_port = 0;         // 0: one that is free there
  RankSettings settings;       // log_dir: on each host
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(300);  // for hosts to be there
  int restart = 0;
  int max_restarts = 0;
  int first_world = 0;       // ranks on all hosts, before any was left out
  NamesAndValues variables;  // for every rank
};

[[nodiscard]] LaunchEnd launch_on_hosts(const HostsLaunchOptions& options);

}  // namespace tandem
