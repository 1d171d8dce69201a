// tests/support/strangers/rendezvous_job.hpp — ranks as threads that meet at a port of the
// loopback, and raw connections to where they meet.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/distributed/process_group.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"

namespace tandem::test {

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

/// Free at this moment.
inline int free_port() {
  const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(probe, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(probe);
  return ntohs(address.sin_port);
}

struct Job {
  int world = 2;
  int port = free_port();
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  std::string secret{};  // empty: by the note

  [[nodiscard]] Environment of(int rank) const {
    return {.source = "a test",
            .rank = rank,
            .world = world,
            .local_rank = rank,
            .local_world = world,
            .master_port = port,
            .secret = secret};
  }
};

inline std::vector<Environment> all_of(const Job& job) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < job.world; ++rank) {
    environments.push_back(job.of(rank));
  }
  return environments;
}

/// Runs body(rank) on a thread for each environment; what each threw, with its exit code: "4
/// [rendezvous] ...".
inline std::vector<std::string> run(
    const std::vector<Environment>& environments, std::chrono::milliseconds timeout,
    const std::function<void(ProcessGroup&)>& body = [](ProcessGroup&) {}) {
  std::vector<std::string> errors(environments.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < environments.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto group = ProcessGroup::join(environments[i], timeout);
        body(*group);
      } catch (const Error& error) {
        errors[i] = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

/// Returns a connection to the port, once a process listens there; none after ten seconds. A read
/// from it waits 20 s at most.
inline OwnedDescriptor dial(int port) {
  const sockaddr_in address = loopback(port);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < until) {
    OwnedDescriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(made.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return made;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

inline void put(const OwnedDescriptor& socket, const void* bytes, std::size_t count) {
  (void)!::send(socket.get(), bytes, count, MSG_NOSIGNAL);
}

/// Up to `most` bytes; fewer where the connection ends before.
inline std::string pull(const OwnedDescriptor& socket, std::size_t most) {
  std::string all(most, 0);
  std::size_t got = 0;
  while (got < most) {
    const ssize_t some = ::recv(socket.get(), all.data() + got, most - got, 0);
    if (some <= 0) {
      break;
    }
    got += static_cast<std::size_t>(some);
  }
  all.resize(got);
  return all;
}

}  // namespace tandem::test
