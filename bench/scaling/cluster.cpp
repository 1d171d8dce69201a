#include "bench/scaling/cluster.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "actors/memory/arena.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/check.hpp"

namespace tandem::bench {
namespace {

constexpr std::uint32_t kHostRanks = Machine::kRanks;
constexpr std::size_t kGathers = 0;
constexpr std::size_t kReductions = 1;
// A piece is sent in parts of NCCL's buffer (NCCL_BUFFSIZE), and as many are under way as a batch
// of its sends holds (NCCL_MAX_DEV_WORK_P2P_PER_BATCH).
constexpr double kPartBytes = 4 << 20;
constexpr std::uint32_t kPartsUnderWay = 8;

Duration duration_of(double seconds) { return Duration(std::llround(seconds * 1e9)); }

std::uint64_t parts_of(double bytes) {
  return std::max<std::uint64_t>(1,
                                 static_cast<std::uint64_t>((bytes + kPartBytes - 1) / kPartBytes));
}

}  // namespace

// ---- the back end of a rank ----

class Cluster::Backend final : public CollectiveBackend {
 public:
  Backend(Cluster& cluster, std::uint32_t rank, Device& device)
      : cluster_(cluster),
        rank_(rank),
        in_(device.stream("h2d slices")),
        out_(device.stream("d2h slices")) {}

  [[nodiscard]] std::uint32_t world() const noexcept override { return cluster_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  std::byte* allocate(std::size_t bytes) override {
    return buffers_.emplace_back(bytes, HostBuffer::Options{.has_memory = false}).data();
  }

  Task<> all_gather(GatherArguments a) override {
    in_.to_device(a.block.memory(), {a.shard.memory(), a.shard_bytes});
    co_await in_.record().wait();
    if (!a.is_replicated) {
      co_await ring(kGathers, static_cast<double>(a.shard_bytes));
    }
  }

  Task<GradientNorm> reduce_scatter_add(ReduceArguments a) override {
    const double piece_bytes = static_cast<double>(a.shard_elements * bytes_of(a.block_type));
    if (cluster_.options_.ring_reductions) {
      co_await ring(kReductions, piece_bytes);
    } else {
      Completion<> done(EventLoop::current());
      cluster_.begin(rank_, kReductions, Kind::kPieces, piece_bytes, kSimple, &done);
      co_await done;
    }
    // A kernel reads the pieces of all ranks and writes the sums; a ring adds on the way.
    const double touched_bytes = piece_bytes * world() + 4.0 * a.shard_elements;
    co_await sleep_for(duration_of(touched_bytes / cluster_.options_.machine.memory_bytes_per_s));
    auto* const sums = static_cast<std::byte*>(a.accumulator.memory());
    out_.to_host({sums, a.shard_elements * sizeof(float)}, sums);
    co_await out_.record().wait();
    co_return GradientNorm{};
  }

  /// Every rank says the same.
  Task<> exchange(ExchangeArguments a) override {
    for (std::uint32_t from = 0; from < world(); ++from) {
      std::memcpy(a.all.host() + from * a.bytes, a.mine.host(), a.bytes);
    }
    co_await ring(kReductions, static_cast<double>(a.bytes));
  }

  Task<GradientNorm> all_reduce_add(ReduceArguments) override { return unused<GradientNorm>(); }
  Task<> all_to_all(AllToAllArguments) override { return unused<void>(); }

 private:
  template <class Result>
  static Task<Result> unused() {
    TANDEM_CHECK(false, "stages 1 to 3 of dense models use no such collective");
    co_return Result();
  }

  Task<> ring(std::size_t sequence, double shard_bytes) {
    Completion<> done(EventLoop::current());
    cluster_.begin(rank_, sequence, Kind::kRing, shard_bytes / kHostRanks,
                   cluster_.protocol_for(shard_bytes * world()), &done);
    co_await done;
  }

  Cluster& cluster_;
  std::uint32_t rank_;
  std::vector<HostBuffer> buffers_;
  DeviceStream in_;
  DeviceStream out_;
};

// ---- the network ----

Cluster::Cluster(SimWorld& world, Options options)
    : world_(world), options_(options), ranks_(world.ranks()) {
  TANDEM_CHECK(options_.world % kHostRanks == 0, "hosts are full");
  TANDEM_CHECK_EQ(world.ranks(), options_.folded ? 1 : options_.world,
                  "ranks of the simulated world");
}

std::unique_ptr<CollectiveBackend> Cluster::attach(std::uint32_t rank, Device& device) {
  return std::make_unique<Backend>(*this, rank, device);
}

/// The latency of a ring: of the beginning and of all hops.
double Cluster::latency_s(const Protocol& protocol) const noexcept {
  const std::uint32_t hosts = options_.world / kHostRanks;
  return protocol.start_s + (options_.world - hosts) * protocol.host_hop_s +
         (hosts - 1) * protocol.network_hop_s;
}

/// The one that NCCL's own estimate prefers.
Cluster::Protocol Cluster::protocol_for(double block_bytes) const noexcept {
  const std::uint32_t hosts = options_.world / kHostRanks;
  const Machine& machine = options_.machine;
  const double bytes_per_s =
      hosts > 1 ? kHostRanks * machine.network_bytes_per_s : machine.host_link_bytes_per_s;
  Protocol ll = kLL;
  ll.payload = std::min(ll.payload, machine.ll_bytes_per_s[std::min(hosts, 3U) - 1] / bytes_per_s);
  ll.host_hop_s *= hosts > 1 ? 1.8 : 1;
  const std::array choices = {ll, kLL128, kSimple};
  return *std::ranges::min_element(choices, {}, [&](const Protocol& protocol) {
    return latency_s(protocol) + block_bytes / (bytes_per_s * protocol.payload);
  });
}

bool Cluster::is_of_host(std::uint32_t rank, std::uint32_t distance) const noexcept {
  return (rank + distance) % options_.world / kHostRanks == rank / kHostRanks;
}

void Cluster::begin(std::uint32_t rank, std::size_t sequence, Kind kind, double message_bytes,
                    Protocol protocol, Completion<>* done) {
  Flow& flow = ranks_[rank].flows[sequence];
  TANDEM_CHECK(flow.done == nullptr, "one operation of a sequence at a time");
  flow.done = done;
  flow.kind = kind;
  flow.protocol = protocol;
  flow.message_bytes = message_bytes;
  const std::uint64_t others = options_.world - 1;
  flow.awaited = others * (kind == Kind::kRing ? kHostRanks : parts_of(message_bytes));
  flow.sending = {};
  const double begins_s = kind == Kind::kRing ? latency_s(protocol) : protocol.start_s;
  world_.after(duration_of(begins_s), rank, [=, this] { start(rank, sequence); });
}

void Cluster::start(std::uint32_t rank, std::size_t sequence) {
  Flow& flow = ranks_[rank].flows[sequence];
  flow.started = true;
  if (flow.kind == Kind::kRing) {
    for (std::uint32_t ring = 0; ring < kHostRanks; ++ring) {
      send_along(rank, sequence, {.operation = flow.operation, .ring = ring, .hops = 0});
    }
  } else {
    for (std::uint32_t part = 0; part < kPartsUnderWay; ++part) {
      send_piece(rank, sequence, kHost);
      send_piece(rank, sequence, kNetwork);
    }
  }
  for (const Message& message : std::exchange(flow.early, {})) {
    take(rank, sequence, message);
  }
}

void Cluster::send(std::uint32_t rank, std::size_t sequence, Port port, double bytes,
                   std::uint32_t to, Message message) {
  const Machine& machine = options_.machine;
  const Protocol& protocol = ranks_[rank].flows[sequence].protocol;
  const double rate = port == kHost ? machine.host_link_bytes_per_s : machine.network_bytes_per_s;
  const bool is_ring = ranks_[rank].flows[sequence].kind == Kind::kRing;
  const double hop_s = is_ring ? 0 : port == kHost ? protocol.host_hop_s : protocol.network_hop_s;
  TimePoint& free_at = ranks_[rank].free_at[port];
  free_at = std::max(free_at, world_.now()) + duration_of(bytes / (rate * protocol.payload));
  const std::uint32_t receiver = options_.folded ? rank : to;
  world_.after(free_at - world_.now() + duration_of(hop_s), receiver,
               [=, this] { arrive(receiver, sequence, message); });
}

/// Ring j enters each host at its rank j and leaves it at the rank before that.
void Cluster::send_along(std::uint32_t rank, std::size_t sequence, Message message) {
  const std::uint32_t host = rank / kHostRanks;
  const std::uint32_t place = rank % kHostRanks;
  const bool leaves = place == (message.ring + kHostRanks - 1) % kHostRanks;
  const std::uint32_t hosts = options_.world / kHostRanks;
  const std::uint32_t next =
      (leaves ? (host + 1) % hosts : host) * kHostRanks + (place + 1) % kHostRanks;
  ++message.hops;
  if (options_.folded) {
    message.ring = (message.ring + kHostRanks - 1) % kHostRanks;
  }
  send(rank, sequence, leaves && hosts > 1 ? kNetwork : kHost,
       ranks_[rank].flows[sequence].message_bytes, next, message);
}

/// The next part for a rank that this port leads to.
void Cluster::send_piece(std::uint32_t rank, std::size_t sequence, Port port) {
  Flow& flow = ranks_[rank].flows[sequence];
  Sending& sending = flow.sending[port];
  if (sending.left_bytes <= 0) {
    while (sending.next_peer < options_.world &&
           is_of_host(rank, sending.next_peer) != (port == kHost)) {
      ++sending.next_peer;
    }
    if (sending.next_peer == options_.world) {
      return;
    }
    sending.left_bytes = flow.message_bytes;
  }
  const double bytes = std::min(sending.left_bytes, kPartBytes);
  const std::uint32_t to = (rank + sending.next_peer) % options_.world;
  sending.left_bytes -= bytes;
  if (sending.left_bytes <= 0) {
    ++sending.next_peer;
  }
  send(rank, sequence, port, bytes, to, {.operation = flow.operation, .ring = port, .hops = 0});
}

void Cluster::arrive(std::uint32_t rank, std::size_t sequence, Message message) {
  Flow& flow = ranks_[rank].flows[sequence];
  if (!flow.started || message.operation != flow.operation) {
    flow.early.push_back(message);
    return;
  }
  take(rank, sequence, message);
}

void Cluster::take(std::uint32_t rank, std::size_t sequence, Message message) {
  Flow& flow = ranks_[rank].flows[sequence];
  if (flow.kind == Kind::kPieces) {
    // All send at one pace, so a part's coming says that one of this rank's own is there, too.
    send_piece(rank, sequence, static_cast<Port>(message.ring));
  } else if (message.hops + 1 < options_.world) {
    send_along(rank, sequence, message);
  }
  if (--flow.awaited == 0) {
    ++flow.operation;
    flow.started = false;
    std::exchange(flow.done, nullptr)->set_value();
  }
}

}  // namespace tandem::bench
