#include "tools/launch/remote_start.hpp"

#include <filesystem>
#include <numeric>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tandem {
namespace {

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return result + "'";
}

}  // namespace

// A prompt could not be answered among the lines of all hosts. A host that does not answer any more
// is one that has failed.
std::vector<std::string> ssh_command(const std::string& host, const std::string& program) {
  return {"ssh", "-T",
          "-o",  "BatchMode=yes",
          "-o",  "ConnectTimeout=30",
          "-o",  "ServerAliveInterval=5",
          "-o",  "ServerAliveCountMax=3",
          host,  fmt::format("exec {} launch --node", in_quotes(program))};
}

NodeOrder order_for(const HostsLaunchOptions& options, std::size_t number, int first_rank,
                    int world, const std::string& secret) {
  const HostSlots& host = options.hosts[number];
  NodeOrder order;
  order.host = host.name;
  order.other_host = options.hosts.size() > 1 ? options.hosts[number == 0 ? 1 : 0].name : "";
  order.places = {.first = first_rank,
                  .here = static_cast<int>(host.slots.size()),
                  .world = world,
                  .host = static_cast<int>(number),
                  .hosts = static_cast<int>(options.hosts.size()),
                  .restart = options.restart,
                  .max_restarts = options.max_restarts,
                  .first_world = options.first_world,
                  .address = options.master_address,
                  .port = options.master_port,
                  .secret = secret};
  order.directory = std::filesystem::current_path().string();
  order.settings = options.settings;
  for (const auto& [name, value] : options.variables) {
    order.variables.push_back(fmt::format("{}={}", name, value));
  }
  // Ranks take GPUs by their place on the host: which ones these are, CUDA is told.
  std::vector<int> first_ones(host.slots.size());
  std::iota(first_ones.begin(), first_ones.end(), 0);
  if (host.slots != first_ones) {
    order.variables.push_back(fmt::format("CUDA_VISIBLE_DEVICES={}", fmt::join(host.slots, ",")));
  }
  return order;
}

}  // namespace tandem
