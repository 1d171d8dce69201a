// runtime/system/network_interface.hpp — this host's network interfaces and their addresses. Any
// thread; read anew at each call.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct NetworkInterface {
  std::string name;
  std::string address;  // as text: "10.0.0.7", "fd00::7"; no link-local ones
  bool is_v6 = false;
};
/// Returns the interfaces that are up, with one entry for each address.
[[nodiscard]] std::vector<NetworkInterface> network_interfaces();

enum class Ip { kAny, kV4, kV6 };
/// Returns the address of the interface `name`; with kAny its IPv4 address, if it has one. Throws a
/// user error that begins with [where] and lists the interfaces if no interface of that name is up
/// with an address of that kind.
[[nodiscard]] std::string address_of_interface(std::string_view where, std::string_view name,
                                               Ip kind = Ip::kAny);

/// Returns the address from which this host reaches `host`; nullopt if the name has no address or
/// there is no route to it. Sends nothing.
[[nodiscard]] std::optional<std::string> address_towards(const std::string& host);

/// True if the address is of 127.0.0.0/8 or ::1.
[[nodiscard]] bool is_loopback(std::string_view address);

}  // namespace tandem
