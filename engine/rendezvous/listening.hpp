// engine/rendezvous/listening.hpp — sockets at one address that a user names, never at all
// addresses of a host. Internal to RendezvousStore.
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

/// Resolves a host; prefers IPv4. Throws a user error if there is no such host, or if the name
/// means every address of this one (0.0.0.0, ::).
[[nodiscard]] NetAddress resolve(const std::string& host, int port);

/// Listens on that address alone. Throws a user error that says what to set.
[[nodiscard]] OwnedDescriptor listen_on(const std::string& host, int port);
[[nodiscard]] int port_of(const OwnedDescriptor& socket);

/// Connects within `most`; returns an empty descriptor if nothing listens there. `interface`: the
/// outgoing network interface; empty: the system's route. Throws Error(kFailure) if this process
/// can open no more sockets, a user error if the interface has no address of that kind.
[[nodiscard]] OwnedDescriptor connect_to(const NetAddress& address, std::chrono::milliseconds most,
                                         const std::string& interface = {});
/// Limits each later send() and recv(), and connect().
void set_time_limit(const OwnedDescriptor& socket, std::chrono::milliseconds most);

}  // namespace tandem
