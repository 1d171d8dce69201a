#include "engine/rendezvous/listening.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netdb.h>
#include <netinet/in.h>

#include "runtime/system/network_interface.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

bool means_every_address(const NetAddress& address) {
  if (address.get()->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&address.bytes)->sin_addr.s_addr == INADDR_ANY;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(&address.bytes)->sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && std::all_of(v6.s6_addr + 12, v6.s6_addr + 16,
                                                   [](unsigned char byte) { return byte == 0; }));
}

OwnedDescriptor make_socket(const NetAddress& address) {
  OwnedDescriptor made(::socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) {
    throw failure(ExitCode::kFailure, "rendezvous",
                  "cannot make a socket: {}; raise the limit of open files", std::strerror(errno));
  }
  return made;
}

// The way out is that of the address: bound to it, the socket has no other one.
void leave_by(const OwnedDescriptor& socket, const std::string& interface, int family) {
  const NetAddress own = resolve(
      address_of_interface("rendezvous", interface, family == AF_INET6 ? Ip::kV6 : Ip::kV4), 0);
  if (::bind(socket.get(), own.get(), own.length) != 0) {
    throw user_error("rendezvous", "no socket at {} of TANDEM_INTERFACE {}: {}", own.text(),
                     interface, std::strerror(errno));
  }
}

}  // namespace

std::string NetAddress::text() const {
  char text[NI_MAXHOST] = {};
  (void)::getnameinfo(get(), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

NetAddress resolve(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    throw user_error("rendezvous", "MASTER_ADDR {} is no known host; give rank 0's address", host);
  }
  const addrinfo* best = found;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET) {
      best = at;
      break;
    }
  }
  NetAddress address{.length = best->ai_addrlen};
  std::memcpy(&address.bytes, best->ai_addr, best->ai_addrlen);
  ::freeaddrinfo(found);
  if (means_every_address(address)) {
    throw user_error("rendezvous",
                     "MASTER_ADDR {} stands for every network of the host; give rank 0's own "
                     "address, or leave it out where all ranks are on one host",
                     host);
  }
  return address;
}

OwnedDescriptor listen_on(const std::string& host, int port) {
  const NetAddress address = resolve(host, port);
  OwnedDescriptor listener = make_socket(address);
  const int yes = 1;
  (void)::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener.get(), address.get(), address.length) == 0 &&
      ::listen(listener.get(), SOMAXCONN) == 0) {
    return listener;
  }
  if (errno == EADDRINUSE) {
    throw user_error("rendezvous",
                     "port {} of {} is in use (by another run, or rank 0 is there twice); set "
                     "MASTER_PORT to a free one",
                     port, host);
  }
  throw user_error("rendezvous",
                   "rank 0 cannot listen on port {} of {}: {}; set MASTER_ADDR to an address of "
                   "its host, or TANDEM_INTERFACE to the interface by which others reach it",
                   port, host, std::strerror(errno));
}

int port_of(const OwnedDescriptor& socket) {
  sockaddr_storage bytes{};
  socklen_t length = sizeof(bytes);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bytes), &length) != 0) {
    throw failure(ExitCode::kFailure, "rendezvous", "a socket has no port: {}",
                  std::strerror(errno));
  }
  // At the same place in IPv4's and IPv6's.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port);
}

OwnedDescriptor connect_to(const NetAddress& address, std::chrono::milliseconds most,
                           const std::string& interface) {
  OwnedDescriptor socket = make_socket(address);
  if (!interface.empty()) {
    leave_by(socket, interface, address.get()->sa_family);
  }
  set_time_limit(socket, most);
  if (::connect(socket.get(), address.get(), address.length) != 0) {
    return {};
  }
  return socket;
}

void set_time_limit(const OwnedDescriptor& socket, std::chrono::milliseconds most) {
  most = std::max(most, std::chrono::milliseconds(1));  // 0 would be no limit
  const timeval limit{.tv_sec = static_cast<time_t>(most.count() / 1000),
                      .tv_usec = static_cast<suseconds_t>(most.count() % 1000 * 1000)};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

}  // namespace tandem
