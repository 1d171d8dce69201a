// tools/launch/remote_start.hpp — the start of a host's part of a launch: ssh's command line, and
// the order that the part reads. Pure.
#pragma once

#include <string>
#include <vector>

#include "tools/launch/hosts_launcher.hpp"
#include "tools/launch/node_link.hpp"

namespace tandem {

/// `program`: this one, at the same path there.
[[nodiscard]] std::vector<std::string> ssh_command(const std::string& host,
                                                   const std::string& program);

/// For host `number`, whose first rank is `first_rank` of `world`.
[[nodiscard]] NodeOrder order_for(const HostsLaunchOptions& options, std::size_t number,
                                  int first_rank, int world, const std::string& secret);

}  // namespace tandem
