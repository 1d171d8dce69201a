// bench/scaling/cluster.hpp — the network of a cluster in virtual time, message by message, and
// collectives over it.
//
// Each rank has two ports: to the other ranks of its host, and to other hosts. A port sends one
// message after another, each at its rate. Gathers are NCCL's rings: as many as a host has ranks,
// each leaving the host at another rank; a rank passes on what it received. As in NCCL's model the
// latencies of a ring's hops come before its bytes. Reductions are the project's: each rank sends
// every other one its piece, a few parts of a port at a time, each of which arrives a latency
// later, and the pieces are added in rank order; or NCCL's ring, which adds in another order.
// Folded: one rank stands for all of `world`. All do the same at the same time, so what its
// neighbours would send it is what it sends them; in a ring that comes from the place before, so
// it arrives in the ring in which this rank has the next place. A collective costs as many messages
// as one rank sends, instead of all that travel.
// Nothing is in the messages: the bench measures a schedule. Buffers are addresses without memory.
// Thread rule: the world's thread. Lives as long as what attach() gave.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "bench/scaling/machine.hpp"
#include "runtime/completion.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem::bench {

class Cluster {
 public:
  struct Options {
    Machine machine;
    std::uint32_t world = Machine::kRanks;  // a multiple of Machine::kRanks
    bool folded = false;                    // the simulated world has one rank
    bool ring_reductions = false;
  };
  Cluster(SimWorld& world, Options options);

  /// `device`: whose memory blocks lie in; slices lie in host memory. Outlives the back end.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> attach(std::uint32_t rank, Device& device);

  [[nodiscard]] std::uint32_t world() const noexcept { return options_.world; }

 private:
  class Backend;

  /// How NCCL sends: what a hop takes beside the bytes, and the share of the rate that is payload.
  /// The figures are those by which it chooses (src/graph/tuning.cc: baseLat, hwLat).
  struct Protocol {
    double start_s;
    double host_hop_s;
    double network_hop_s;
    double payload;
  };
  static constexpr Protocol kLL = {6.6e-6, 0.6e-6, 2.7e-6, 0.5};
  static constexpr Protocol kLL128 = {14e-6, 1.9e-6, 4e-6, 0.92};
  static constexpr Protocol kSimple = {8.4e-6, 3.4e-6, 14e-6, 1};

  enum Port : std::uint8_t { kHost, kNetwork, kPorts };
  enum class Kind : std::uint8_t { kRing, kPieces };

  /// A message on its way, or of an operation that its receiver has not begun.
  struct Message {
    std::uint64_t operation;
    std::uint32_t ring;
    std::uint32_t hops;  // made so far
  };
  /// The pieces of one port that are still to be sent.
  struct Sending {
    std::uint32_t next_peer = 1;  // distance
    double left_bytes = 0;        // of that peer's piece
  };
  /// One rank's part of the operation under way in one of the two sequences.
  struct Flow {
    std::uint64_t operation = 0;   // number of the one under way, or of the next
    Completion<>* done = nullptr;  // null: none is under way
    bool started = false;
    Kind kind = Kind::kRing;
    Protocol protocol = kSimple;
    double message_bytes = 0;   // of a ring's message, of a whole piece
    std::uint64_t awaited = 0;  // messages still to come
    std::array<Sending, kPorts> sending;
    std::vector<Message> early;  // of the next operation
  };
  struct RankState {
    std::array<TimePoint, kPorts> free_at;
    std::array<Flow, 2> flows;
  };

  void begin(std::uint32_t rank, std::size_t sequence, Kind kind, double message_bytes,
             Protocol protocol, Completion<>* done);
  void start(std::uint32_t rank, std::size_t sequence);
  void send(std::uint32_t rank, std::size_t sequence, Port port, double bytes, std::uint32_t to,
            Message message);
  void send_along(std::uint32_t rank, std::size_t sequence, Message message);
  void send_piece(std::uint32_t rank, std::size_t sequence, Port port);
  void arrive(std::uint32_t rank, std::size_t sequence, Message message);
  void take(std::uint32_t rank, std::size_t sequence, Message message);
  [[nodiscard]] bool is_of_host(std::uint32_t rank, std::uint32_t distance) const noexcept;
  [[nodiscard]] double latency_s(const Protocol& protocol) const noexcept;
  [[nodiscard]] Protocol protocol_for(double block_bytes) const noexcept;

  SimWorld& world_;
  Options options_;
  std::vector<RankState> ranks_;  // [simulated rank]
};

}  // namespace tandem::bench
