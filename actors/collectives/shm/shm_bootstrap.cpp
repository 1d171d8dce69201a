#include "actors/collectives/shm/shm_bootstrap.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "actors/collectives/secret.hpp"
#include "actors/collectives/shm/shm_control.hpp"
#include "runtime/io/net.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Hello {
  static constexpr std::uint64_t kMagic = 0x74616e64656d3031;  // "tandem01"
  std::uint64_t magic = kMagic;
  std::uint64_t layout_bytes = sizeof(ShmControl);  // another version of the program has another
  std::uint32_t rank = 0;
  std::uint32_t world = 0;
  std::uint64_t arena_bytes = 0;
  ShmMapping::Token token{};
  Secret::Proof proof{};  // over all before it
};
static_assert(std::has_unique_object_representations_v<Hello>, "no padding that is not set");

Secret::Proof proof_of(const Secret& job, Hello hello) {
  hello.proof = {};
  return job.prove("shm hello", std::as_bytes(std::span(&hello, 1)));
}

bool is_proven(const Secret& job, Hello hello) {
  const Secret::Proof proof = std::exchange(hello.proof, {});
  return job.is_proof(proof, "shm hello", std::as_bytes(std::span(&hello, 1)));
}

struct SegmentName {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// A leading zero makes the name abstract.
SegmentName name_of(const std::string& job, std::uint32_t rank) {
  const std::string text = shm_name(job, rank);
  SegmentName name;
  name.address.sun_family = AF_UNIX;
  TANDEM_CHECK(text.size() + 1 < sizeof(name.address.sun_path), "a job's name is short");
  std::ranges::copy(text, name.address.sun_path + 1);
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

[[noreturn]] void throw_system(const char* what) {
  throw failure(ExitCode::kPeer, "shm", "{}: {}", what, std::strerror(errno));
}

OwnedDescriptor make_socket() {
  OwnedDescriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // To connect does not wait longer for a place in the peer's queue.
  const timeval most{.tv_sec = 1, .tv_usec = 0};
  if (made.get() < 0 ||
      ::setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most)) != 0) {
    throw_system("cannot make a socket");
  }
  return made;
}

/// Whether the peer belongs to this process's user.
bool is_ours(int socket) {
  const std::optional<SocketPeer> peer = peer_of(socket);
  return peer && peer->user == ::geteuid();
}

class ShmBootstrap {
 public:
  ShmBootstrap(const ShmBootstrapOptions& options, ShmArena& arena)
      : options_(options),
        job_(options.job),
        arena_(arena),
        deadline_(Clock::now() + options.timeout),
        peers_(options.world) {
    TANDEM_CHECK_LT(options.rank, options.world, "a rank is below the world size");
  }

  std::vector<ShmPeer> connect() {
    const OwnedDescriptor listener = listen();
    for (std::uint32_t peer = 0; peer < options_.rank; ++peer) {
      OwnedDescriptor socket = call(peer);
      send_hello(socket.get());
      take_hello(std::move(socket), peer);
    }
    std::uint32_t missing = options_.world - options_.rank - 1;
    while (missing > 0) {
      OwnedDescriptor socket = accept(listener.get());
      const int descriptor = socket.get();
      if (is_ours(descriptor)) {
        const std::uint32_t peer = take_hello(std::move(socket), std::nullopt);
        send_hello(peers_[peer].socket.get());
        --missing;
      }
    }
    arena_.close_descriptor();
    return std::move(peers_);
  }

 private:
  OwnedDescriptor listen() {
    OwnedDescriptor listener = make_socket();
    const SegmentName name = name_of(options_.job, options_.rank);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes) != 0) {
      if (errno == EADDRINUSE) {
        throw failure(ExitCode::kPeer, "shm",
                      "rank {} is there twice; give each process a rank of its own", options_.rank);
      }
      throw_system("cannot bind a socket");
    }
    if (::listen(listener.get(), SOMAXCONN) != 0) {
      throw_system("cannot listen on a socket");
    }
    return listener;
  }

  // The peer may not have begun to listen yet. A stranger at its name counts as no peer: nothing is
  // sent to it.
  OwnedDescriptor call(std::uint32_t peer) {
    const SegmentName name = name_of(options_.job, peer);
    for (;;) {
      OwnedDescriptor socket = make_socket();
      const bool connected =
          ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes) ==
          0;
      if (connected && is_ours(socket.get())) {
        return socket;
      }
      if (!connected && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
        throw_system("cannot connect to a peer");
      }
      if (Clock::now() >= deadline_) {
        throw_missing(peer);
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  OwnedDescriptor accept(int listener) {
    wait_readable(listener, std::nullopt);
    OwnedDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0 && errno != EINTR && errno != ECONNABORTED) {
      throw_system("cannot accept a peer");
    }
    return socket;
  }

  void wait_readable(int descriptor, std::optional<std::uint32_t> peer) {
    for (;;) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now()).count();
      pollfd look{.fd = descriptor, .events = POLLIN, .revents = 0};
      const int ready =
          ::poll(&look, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
      if (ready > 0) {
        return;
      }
      if (ready < 0 && errno != EINTR) {
        throw_system("cannot wait for a peer");
      }
      if (Clock::now() >= deadline_) {
        throw_missing(peer);
      }
    }
  }

  void send_hello(int socket) {
    Hello hello{.rank = options_.rank,
                .world = options_.world,
                .arena_bytes = arena_.mapping().size_bytes(),
                .token = arena_.token()};
    hello.proof = proof_of(job_, hello);
    const ssize_t sent =
        send_with_descriptor(socket, std::as_bytes(std::span(&hello, 1)), arena_.descriptor());
    if (sent != static_cast<ssize_t>(sizeof(hello))) {  // a fresh socket takes that much at once
      throw_system("a peer ended before it was connected");
    }
  }

  /// The peer's rank. `expected`: the rank that was called; none: the caller says its own.
  std::uint32_t take_hello(OwnedDescriptor socket, std::optional<std::uint32_t> expected) {
    wait_readable(socket.get(), expected);
    Hello hello{.magic = 0};
    const Received got =
        receive_with_descriptor(socket.get(), std::as_writable_bytes(std::span(&hello, 1)));
    if (got.bytes == 0 && expected) {
      throw failure(ExitCode::kPeer, "shm", "rank {} ended before it was connected", *expected);
    }
    const int memory = got.descriptor.get();
    check(hello, static_cast<std::size_t>(std::max<ssize_t>(got.bytes, 0)), memory, expected);
    peers_[hello.rank] = {std::move(socket),
                          ShmMapping::of_peer(memory, hello.arena_bytes, hello.token)};
    return hello.rank;
  }

  void check(const Hello& hello, std::size_t got, int memory,
             std::optional<std::uint32_t> expected) const {
    if (got != sizeof(hello) || hello.magic != Hello::kMagic || memory < 0 ||
        hello.layout_bytes != sizeof(ShmControl) || hello.arena_bytes < sizeof(ShmControl)) {
      throw failure(ExitCode::kPeer, "shm",
                    "a peer speaks otherwise; run the same version on all ranks");
    }
    if (!is_proven(job_, hello)) {
      throw failure(ExitCode::kPeer, "shm",
                    "a process that does not know this job's secret called; start the run again");
    }
    if (hello.world != options_.world) {
      throw failure(ExitCode::kPeer, "shm", "rank {} is of {} ranks, rank {} of {}", hello.rank,
                    hello.world, options_.rank, options_.world);
    }
    const bool wrong = expected ? hello.rank != *expected
                                : hello.rank <= options_.rank || hello.rank >= options_.world ||
                                      peers_[hello.rank].memory != nullptr;
    if (wrong) {
      throw failure(ExitCode::kPeer, "shm", "a peer says that it is rank {} of {}, unexpectedly",
                    hello.rank, hello.world);
    }
  }

  [[noreturn]] void throw_missing(std::optional<std::uint32_t> peer) const {
    std::string missing;
    std::optional<std::uint32_t> first;
    for (std::uint32_t rank = 0; rank < options_.world; ++rank) {
      if (peer ? rank == *peer : rank > options_.rank && peers_[rank].memory == nullptr) {
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", options_.first_rank + rank);
        first = first.value_or(rank);
      }
    }
    throw PeerLost(fmt::format("[shm] of {} ranks of this host, {} did not come within {:.0f} s",
                               options_.world, missing,
                               std::chrono::duration<double>(options_.timeout).count()),
                   first.value_or(options_.rank));
  }

  const ShmBootstrapOptions& options_;
  Secret job_;
  ShmArena& arena_;
  Clock::time_point deadline_;
  std::vector<ShmPeer> peers_;
};

}  // namespace

std::string shm_name(const std::string& job, std::uint32_t rank) {
  return "tandem-" + Secret(job).derive("shm name", std::to_string(rank));
}

std::vector<ShmPeer> bootstrap_shm(const ShmBootstrapOptions& options, ShmArena& arena) {
  return ShmBootstrap(options, arena).connect();
}

}  // namespace tandem
