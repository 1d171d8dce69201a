// engine/distributed/rendezvous_store.hpp — a rank's client of the run's key-value store, with
// deadlines that name the missing rank.
//
// All ranks call all() and leave_together() in the same order and publish how many of these steps
// they have begun. So a deadline names the rank that is behind, here and in the flight recorder,
// and not one that waits for it. Rank 0 hosts the store (rendezvous_server.hpp), on the one address
// that is named. Every rank, also rank 0, uses it over a connection on which both sides have proven
// that they know the run's secret. Blocking; of one thread. Internal to ProcessGroup.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/distributed/environment.hpp"
#include "engine/distributed/run_secret.hpp"
#include "engine/rendezvous/rendezvous_wire.hpp"
#include "runtime/clock.hpp"
#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

class Patience;
class RendezvousServer;

class RendezvousStore {
 public:
  /// Hosts the store (rank 0) and connects to it. Throws a user error if the port is taken, the
  /// address cannot be listened on, or the secret is invalid; Error(kPeer) if this run's store
  /// cannot be reached in time.
  RendezvousStore(const Environment& environment, std::chrono::milliseconds timeout);
  ~RendezvousStore();
  RendezvousStore(const RendezvousStore&) = delete;
  RendezvousStore& operator=(const RendezvousStore&) = delete;

  void set(std::string_view key, std::string_view value);
  /// Adds one to the key's count and returns the new value.
  std::int64_t count(std::string_view key);
  /// Waits for the value, which `rank` sets.
  [[nodiscard]] std::string get(std::string_view key, int rank);
  /// Sets this rank's value, waits for the values of all ranks, and gives them in rank order.
  [[nodiscard]] std::vector<std::string> all(std::string_view key, std::string_view mine);
  /// Rank 0, which hosts the store, stays until all others have come here, too.
  void leave_together(std::string_view key);
  /// Call it when all ranks are connected: from then on no rank listens.
  void close_to_strangers();
  /// Derives the text of another secret from the run's secret and `what`.
  [[nodiscard]] std::string derive_secret(std::string_view purpose, std::string_view what) const;

 private:
  enum class Attempt { kConnected, kNotThere, kStranger, kOtherVersion };

  void host();
  void connect();
  [[noreturn]] void throw_not_met(Attempt last) const;
  void check_address() const;
  /// Prints on stderr which rank is missing, because the wait can last minutes.
  void say_waiting_for(int rank) const;
  [[nodiscard]] Attempt try_to_connect(int port);
  [[nodiscard]] Attempt shake_hands(int socket, TimePoint until) const;
  [[nodiscard]] std::string run_name() const;

  struct Answered {
    bool is_there = false;
    std::string value;
  };
  Answered ask(rendezvous::Question question, std::string_view key, std::string_view value = {});
  /// Returns false if the value is not set in time.
  [[nodiscard]] bool wait(std::string_view key, Patience& patience, std::string& value,
                          std::optional<int> rank = std::nullopt);
  void begin_step();
  /// Returns the first of the ranks that have begun the fewest steps; `otherwise` if all have begun
  /// the same number.
  [[nodiscard]] int rank_behind(int otherwise);
  [[noreturn]] void throw_missing(std::string_view key, int ranks);

  const Environment& environment_;
  std::chrono::milliseconds timeout_;
  std::string address_;    // MASTER_ADDR's, or the loopback
  std::string interface_;  // TANDEM_INTERFACE, where the ranks are on several hosts
  int port_;
  std::string secret_;  // its text
  bool by_note_;        // the other ranks learn port and secret by the note
  MeetingNote note_;
  std::unique_ptr<RendezvousServer> server_;  // of rank 0
  OwnedDescriptor socket_;
  int steps_ = 0;        // all() and leave_together() that this rank has begun
  bool meeting_ = true;  // until close_to_strangers()
};

}  // namespace tandem
