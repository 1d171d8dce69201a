// tests/support/strangers/shm_hello.hpp — the hello that ranks of one host send when they meet,
// sent by a test in their place. The layout is that of the Hello in
// actors/collectives/shm/shm_bootstrap.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>

#include <sys/socket.h>
#include <sys/un.h>

#include "actors/collectives/secret.hpp"
#include "actors/collectives/shm/shm_arena.hpp"
#include "actors/collectives/shm/shm_bootstrap.hpp"
#include "actors/collectives/shm/shm_control.hpp"
#include "runtime/system/owned_descriptor.hpp"

namespace tandem::test {

struct ShmHello {
  std::uint64_t magic = 0x74616e64656d3031;
  std::uint64_t layout_bytes = sizeof(ShmControl);
  std::uint32_t rank = 1;
  std::uint32_t world = 2;
  std::uint64_t arena_bytes = std::uint64_t{1} << 20;
  ShmMapping::Token token{1, 2};
  Secret::Proof proof{};

  void prove(const std::string& job) {
    proof = {};
    proof = Secret(job).prove("shm hello", std::as_bytes(std::span(this, 1)));
  }
};

/// An abstract name.
struct UnixAddress {
  sockaddr_un bytes{};
  socklen_t length;
  explicit UnixAddress(const std::string& name)
      : length(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) {
    bytes.sun_family = AF_UNIX;
    std::memcpy(bytes.sun_path + 1, name.data(), name.size());
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

/// With five seconds for what it waits for.
inline OwnedDescriptor unix_socket() {
  OwnedDescriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  return made;
}

/// A connection to rank 0 of the job, which may not listen yet.
inline OwnedDescriptor call_rank_0(const std::string& job) {
  const UnixAddress name(shm_name(job, 0));
  for (;;) {
    OwnedDescriptor socket = unix_socket();
    if (::connect(socket.get(), name.get(), name.length) == 0) {
      return socket;
    }
    std::this_thread::yield();
  }
}

}  // namespace tandem::test
