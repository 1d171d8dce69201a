#include "engine/distributed/rendezvous_store.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>

#include <c10/util/Logging.h>
#include <netdb.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  int family = AF_INET;
};

/// IPv4 where there is a choice.
std::optional<Address> resolve(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    return std::nullopt;
  }
  const addrinfo* best = found;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET) {
      best = at;
      break;
    }
  }
  Address address{.length = best->ai_addrlen, .family = best->ai_family};
  std::memcpy(&address.bytes, best->ai_addr, best->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

Address need_address(const std::string& host, int port) {
  if (const auto address = resolve(host, port)) {
    return *address;
  }
  throw user_error("rendezvous", "MASTER_ADDR {} is no known host; give rank 0's address", host);
}

/// A listening socket on that address alone.
int listen_on(const std::string& host, int port, int world) {
  const Address address = need_address(host, port);
  const int listener = ::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  (void)::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address.bytes), address.length) == 0 &&
      ::listen(listener, std::max(world, 128)) == 0) {
    return listener;
  }
  const int error = errno;
  ::close(listener);
  if (error == EADDRINUSE) {
    throw user_error("rendezvous",
                     "port {} of {} is in use (by another run, or rank 0 is there twice); set "
                     "MASTER_PORT to a free one",
                     port, host);
  }
  throw user_error("rendezvous",
                   "rank 0 cannot listen on port {} of {}: {}; set MASTER_ADDR to an address of "
                   "its host",
                   port, host, std::strerror(error));
}

bool somebody_listens(const Address& address) {
  const int probe = ::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address.bytes), address.length) == 0;
  ::close(probe);
  return connected;
}

/// The ranks of one host need no network, unless the user names an address.
std::string address_of(const Environment& e) {
  const bool own_choice = !e.address_given && e.local_world == e.world;
  return own_choice || e.master_address == "localhost" ? "127.0.0.1" : e.master_address;
}

// c10d tells of each failure in many lines of its own; ours is one. Who set a level wants to see
// them. The level is the process's, and ranks may be threads of one: the last that leaves sets it
// back.
class QuietStore {
 public:
  QuietStore() {
    const std::lock_guard lock(mutex_);
    if (inside_++ == 0) {
      level_ = FLAGS_caffe2_log_level;
      if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
        FLAGS_caffe2_log_level = std::max(level_, static_cast<int>(c10::GLOG_FATAL));
      }
    }
  }
  ~QuietStore() {
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) {
      FLAGS_caffe2_log_level = level_;
    }
  }
  QuietStore(const QuietStore&) = delete;

 private:
  inline static std::mutex mutex_;
  inline static int inside_ = 0;
  inline static int level_ = 0;
};

// Whatever the store throws while it runs: its host is gone.
template <class Fn>
auto asked(Fn fn) {
  const QuietStore quiet;
  try {
    return fn();
  } catch (const std::exception&) {
    throw failure(ExitCode::kPeer, "rendezvous",
                  "the host of the rendezvous (rank 0 or the launcher) is gone; see its output");
  }
}

}  // namespace

struct RendezvousStore::Client {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

RendezvousStore::RendezvousStore(const Environment& environment, milliseconds timeout)
    : environment_(environment),
      timeout_(timeout),
      address_(address_of(environment)),
      client_(std::make_unique<Client>()) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  options.isServer = environment.rank == 0 && !environment.agent_store;
  if (options.isServer) {
    options.masterListenFd = listen_on(address_, environment.master_port, environment.world);
  } else {
    // Tried here, because the store's own attempts fill the screen.
    const Address address = need_address(address_, environment.master_port);
    const Deadline until = deadline();
    while (!somebody_listens(address)) {
      if (Clock::now() >= until) {
        throw failure(ExitCode::kPeer, "rendezvous",
                      "rank 0 did not open port {} of {} within {} s; see its output",
                      environment.master_port, address_, timeout.count() / 1e3);
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
  }
  const QuietStore quiet;
  try {
    client_->store = c10::make_intrusive<c10d::TCPStore>(address_, options);
  } catch (const std::exception& error) {
    throw failure(
        ExitCode::kPeer, "rendezvous", "no store at port {} of {}: {}", environment.master_port,
        address_,
        std::string_view(error.what()).substr(0, std::string_view(error.what()).find('\n')));
  }
}

RendezvousStore::~RendezvousStore() = default;

std::string RendezvousStore::named(std::string_view key) const {
  return fmt::format("tandem/{}/{}/{}", environment_.run_id, environment_.restart, key);
}

void RendezvousStore::set(std::string_view key, std::string_view value) {
  asked([&] { client_->store->set(named(key), {value.begin(), value.end()}); });
}

std::int64_t RendezvousStore::count(std::string_view key) {
  return asked([&] { return client_->store->add(named(key), 1); });
}

// Asks again and again: the store's own wait fills the screen when it is over.
bool RendezvousStore::wait(const std::string& key, Deadline until) {
  for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(20))) {
    if (asked([&] { return client_->store->check({key}); })) {
      return true;
    }
    if (Clock::now() >= until) {
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
}

std::string RendezvousStore::value_of(const std::string& key) {
  const auto bytes = asked([&] { return client_->store->get(key); });
  return {bytes.begin(), bytes.end()};
}

std::string RendezvousStore::get(std::string_view key, int rank) {
  const std::string name = named(key);
  if (!wait(name, deadline())) {
    throw failure(ExitCode::kPeer, "rendezvous", "rank {} did not come within {} s; see its output",
                  rank, timeout_.count() / 1e3);
  }
  return value_of(name);
}

std::vector<std::string> RendezvousStore::all(std::string_view key, std::string_view mine) {
  set(fmt::format("{}/{}", key, environment_.rank), mine);
  const Deadline until = deadline();
  std::vector<std::string> values;
  for (int rank = 0; rank < environment_.world; ++rank) {
    const std::string name = named(fmt::format("{}/{}", key, rank));
    if (!wait(name, until)) {
      throw_missing(key, environment_.world);
    }
    values.push_back(value_of(name));
  }
  return values;
}

void RendezvousStore::throw_missing(std::string_view key, int ranks) {
  std::string came;
  int count = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = named(fmt::format("{}/{}", key, rank));
    if (asked([&] { return client_->store->check({name}); })) {
      came += fmt::format("{}{}", count == 0 ? "" : ", ", rank);
      ++count;
    }
  }
  throw failure(ExitCode::kPeer, "rendezvous",
                "{} of {} ranks came within {} s ({}); see the output of the others", count, ranks,
                timeout_.count() / 1e3, came);
}

void RendezvousStore::leave_together(std::string_view key) {
  const std::string through = fmt::format("{}/all", key);
  if (count(fmt::format("{}/left", key)) == environment_.world) {
    set(through, "1");
  }
  if (environment_.rank == 0) {
    (void)wait(named(through), deadline());
  }
}

}  // namespace tandem
