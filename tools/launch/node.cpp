#include "tools/launch/node.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

#include "runtime/system/network_interface.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/split.hpp"
#include "tools/launch/child_signals.hpp"
#include "tools/launch/launcher.hpp"
#include "tools/launch/node_link.hpp"

namespace tandem {
namespace {

bool can_be_started(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    return ::access(program.c_str(), X_OK) == 0;
  }
  const char* const given = std::getenv("PATH");
  return std::ranges::any_of(
      split(given != nullptr ? given : "/bin:/usr/bin", ':'), [&](std::string_view folder) {
        return ::access(fmt::format("{}/{}", folder, program).c_str(), X_OK) == 0;
      });
}

void check_place(const NodeOrder& order) {
  if (::chdir(order.directory.c_str()) != 0) {
    throw user_error("launch", "no folder {}: {}; the same must be there on every host",
                     order.directory, std::strerror(errno));
  }
  if (!can_be_started(order.settings.command.front())) {
    throw user_error("launch", "cannot start {}: {}; the same must be there on every host",
                     order.settings.command.front(), std::strerror(errno));
  }
}

/// The address of rank 0's host: the one asked for, else one that others are known to reach.
std::string meeting_address(const NodeOrder& order) {
  if (!order.places.address.empty()) {
    return order.places.address;
  }
  if (const char* name = std::getenv("TANDEM_INTERFACE"); name != nullptr && *name != 0) {
    return address_of_interface("launch", name);
  }
  if (order.other_host.empty()) {
    return "127.0.0.1";
  }
  // "CLIENT PORT SERVER PORT": the launch came in there.
  if (const char* connection = std::getenv("SSH_CONNECTION"); connection != nullptr) {
    char server[256] = {};
    if (std::sscanf(connection, "%*s %*s %255s", server) == 1 && !is_loopback(server)) {
      return server;
    }
  }
  if (const auto address = address_towards(order.other_host)) {
    return *address;
  }
  throw user_error(
      "launch",
      "it knows no way to host {}, so it has no address to meet at; give --master_addr, "
      "or set TANDEM_INTERFACE",
      order.other_host);
}

/// 0: the launch goes on; else it ended before it began.
int wait_for_go(NodeLink& link, RankPlaces& places) {
  const std::string line = link.wait();
  char address[256] = {};
  int number = 0;
  if (std::sscanf(line.c_str(), "go %255s %d", address, &number) == 2 && number > 0 &&
      number <= 65'535) {
    places.address = address;
    places.port = number;
    return 0;
  }
  const bool is_signal =
      std::sscanf(line.c_str(), "signal %d", &number) == 1 && is_passed_on(number);
  return 128 + (is_signal ? number : SIGTERM);
}

int run(NodeLink& link) {
  NodeOrder order = link.wait_for_order();
  check_place(order);
  HeldPort held;
  if (order.places.host == 0) {
    const std::string address = meeting_address(order);
    held = hold_port(address, order.places.port);
    link.tell("ready {} {}", address, held.port);
  } else {
    link.tell("ready - 0");
  }
  LaunchEnd end{.code = wait_for_go(link, order.places)};
  if (end.code == 0) {
    end = launch(
        {.places = order.places, .host = order.host, .settings = order.settings, .link = &link});
  }
  link.tell("ended {} {}", end.code, end.failure);
  return end.code;
}

}  // namespace

int run_node() {
  NodeLink link(0, 1);
  try {
    return run(link);
  } catch (const Error& error) {
    link.tell("refused {} {}", static_cast<int>(error.code()), error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace tandem
