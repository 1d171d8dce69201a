// engine/distributed/listening.hpp — sockets at an address that a user names: one address, never
// all of the host's. Internal to RendezvousStore.
#pragma once

#include <chrono>
#include <string>

#include <sys/socket.h>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

struct NetAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  /// "10.0.0.7".
  [[nodiscard]] std::string text() const;
};

/// IPv4 where there is a choice. Throws a user error when there is no such host, or when the name
/// stands for every address of this one (0.0.0.0, ::).
[[nodiscard]] NetAddress resolve(const std::string& host, int port);

/// Listens on that address alone. Throws a user error that says what to set.
[[nodiscard]] OwnedDescriptor listen_on(const std::string& host, int port);
[[nodiscard]] int port_of(const OwnedDescriptor& socket);

/// Within `most`; an empty descriptor when nothing listens there. `interface`: the one to go out
/// by; empty: as the system routes. Throws Error(kFailure) when this process can have no more
/// sockets, a user error when the interface has no address of that kind.
[[nodiscard]] OwnedDescriptor connect_to(const NetAddress& address, std::chrono::milliseconds most,
                                         const std::string& interface = {});
/// Limits each later send() and recv(), and connect().
void set_time_limit(const OwnedDescriptor& socket, std::chrono::milliseconds most);

}  // namespace tandem
