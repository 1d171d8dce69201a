// engine/distributed/rendezvous_store.hpp — the key-value store of a run's ranks: c10d's TCPStore,
// with deadlines that say who is missing, and a listener of our own (the store's would listen on
// every network). Blocking; of one thread. Internal to ProcessGroup.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/distributed/environment.hpp"

namespace tandem {

class RendezvousStore {
 public:
  /// Hosts it (rank 0, unless a launcher does) or connects to it. Throws a user error when the port
  /// is taken, Error(kPeer) when no host of the store is reached in time.
  RendezvousStore(const Environment& environment, std::chrono::milliseconds timeout);
  ~RendezvousStore();
  RendezvousStore(const RendezvousStore&) = delete;
  RendezvousStore& operator=(const RendezvousStore&) = delete;

  void set(std::string_view key, std::string_view value);
  /// Adds one and gives the new value.
  std::int64_t count(std::string_view key);
  /// Waits for the value, which `rank` sets.
  [[nodiscard]] std::string get(std::string_view key, int rank);
  /// Sets this rank's value, waits for the values of all ranks, and gives them in rank order.
  [[nodiscard]] std::vector<std::string> all(std::string_view key, std::string_view mine);
  /// Rank 0, which may host the store, stays until all others have come here, too.
  void leave_together(std::string_view key);

 private:
  struct Client;
  using Deadline = std::chrono::steady_clock::time_point;

  [[nodiscard]] std::string named(std::string_view key) const;
  [[nodiscard]] Deadline deadline() const { return std::chrono::steady_clock::now() + timeout_; }
  /// False: it is not there in time.
  [[nodiscard]] bool wait(const std::string& key, Deadline until);
  [[nodiscard]] std::string value_of(const std::string& key);
  [[noreturn]] void throw_missing(std::string_view key, int ranks);

  const Environment& environment_;
  std::chrono::milliseconds timeout_;
  std::string address_;
  std::unique_ptr<Client> client_;
};

}  // namespace tandem
