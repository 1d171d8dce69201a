// engine/rendezvous/rendezvous_server.hpp — the key-value store of a run's ranks, on a thread of
// rank 0.
//
// A connection that has not proven that it knows the run's secret gets memory for one handshake and
// a few seconds; the number of such connections is bounded. When all ranks have connected, only
// proven connections stay, and nothing listens any more. Internal to RendezvousStore.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <string>
#include <thread>

#include "actors/collectives/secret.hpp"
#include "engine/rendezvous/rendezvous_wire.hpp"
#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

class RendezvousServer {
 public:
  /// `listener`: a listening socket. `run`: as in rendezvous_wire.hpp. Throws Error(kFailure) when
  /// the process can have no more descriptors.
  RendezvousServer(OwnedDescriptor listener, const Secret& secret, std::string run);
  /// Closes every connection. If some ranks have not connected yet, waits up to two seconds for the
  /// peers to close theirs first.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  /// Stops listening before it returns. Any thread.
  void stop_listening();

 private:
  struct Connection;

  void serve();
  void turn(int most_ms);
  void wait(int most_ms);
  void accept_some();
  void make_room();
  void drop_unproven(bool only_late);
  [[nodiscard]] bool advance(Connection& connection);
  [[nodiscard]] bool take_handshake(Connection& connection);
  [[nodiscard]] bool take_request(Connection& connection);
  [[nodiscard]] bool answer(Connection& connection, rendezvous::Question question,
                            const std::string& key, std::string value);
  /// Null: there is no such key.
  [[nodiscard]] static bool reply(Connection& connection, const std::string* value);
  [[nodiscard]] bool store(const std::string& key, std::string value);

  OwnedDescriptor listener_;
  OwnedDescriptor wake_;
  Secret secret_;
  std::string run_;
  std::list<Connection> connections_;  // the oldest first
  std::map<std::string, std::string> values_;
  std::size_t stored_bytes_ = 0;
  std::atomic<bool> listens_{true};
  std::atomic<bool> ends_{false};
  std::jthread thread_;
};

}  // namespace tandem
