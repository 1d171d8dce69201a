#include "runtime/system/network_interface.hpp"

#include <algorithm>

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

std::string text_of(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  return ::getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0
             ? text
             : std::string();
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

}  // namespace

std::vector<NetworkInterface> network_interfaces() {
  std::vector<NetworkInterface> all;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    return all;
  }
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 ||
        (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6) ||
        is_link_local(at->ifa_addr)) {
      continue;
    }
    const bool is_v6 = at->ifa_addr->sa_family == AF_INET6;
    all.push_back(
        {.name = at->ifa_name,
         .address = text_of(at->ifa_addr, is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)),
         .is_v6 = is_v6});
  }
  ::freeifaddrs(first);
  return all;
}

std::string address_of_interface(std::string_view where, std::string_view name, Ip kind) {
  const std::vector<NetworkInterface> all = network_interfaces();
  for (const bool v6 : {false, true}) {
    if (kind == (v6 ? Ip::kV4 : Ip::kV6)) {
      continue;
    }
    const auto found = std::ranges::find_if(
        all, [&](const NetworkInterface& one) { return one.name == name && one.is_v6 == v6; });
    if (found != all.end()) {
      return found->address;
    }
  }
  std::vector<std::string> names;
  names.reserve(all.size());
  for (const NetworkInterface& one : all) {
    names.push_back(fmt::format("{} ({})", one.name, one.address));
  }
  throw user_error(where,
                   "TANDEM_INTERFACE is {}, and no such interface of this host is up with an "
                   "address{}; there are {}",
                   one_line(name),
                   kind == Ip::kV6   ? " of IPv6"
                   : kind == Ip::kV4 ? " of IPv4"
                                     : "",
                   fmt::join(names, ", "));
}

std::optional<std::string> address_towards(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &wanted, &found) != 0) {
    return std::nullopt;
  }
  std::optional<std::string> address;
  for (const addrinfo* at = found; at != nullptr && !address; at = at->ai_next) {
    const OwnedDescriptor socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      address = text_of(reinterpret_cast<const sockaddr*>(&own), length);
    }
  }
  ::freeaddrinfo(found);
  return address;
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1";
}

}  // namespace tandem
