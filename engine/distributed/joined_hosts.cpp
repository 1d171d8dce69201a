#include "engine/distributed/joined_hosts.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "runtime/system/network_interface.hpp"

namespace tandem {
namespace {

/// ",mlx5_0:1,mlx5_1:1": each with a comma before it.
std::string active_ports() {
  namespace fs = std::filesystem;
  std::string ports;
  std::error_code ignored;
  for (const fs::directory_entry& device :
       fs::directory_iterator("/sys/class/infiniband", ignored)) {
    for (const fs::directory_entry& port :
         fs::directory_iterator(device.path() / "ports", ignored)) {
      std::string state;  // "4: ACTIVE"
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.ends_with("ACTIVE")) {
        ports += fmt::format(",{}:{}", device.path().filename().string(),
                             port.path().filename().string());
      }
    }
  }
  return ports;
}

/// Empty: not known.
std::string interface_towards(const std::string& host) {
  const std::optional<std::string> own = address_towards(host);
  for (const NetworkInterface& interface : network_interfaces()) {
    if (own && interface.address == *own) {
      return interface.name;
    }
  }
  return "";
}

}  // namespace

std::string meeting_interface(const Environment& environment) {
  return environment.interface.empty() ? interface_towards(environment.master_address)
                                       : environment.interface;
}

std::string net_devices(const Environment& environment) {
  const std::string interface = meeting_interface(environment);
  return interface.empty() ? "" : interface + active_ports();
}

}  // namespace tandem
