// runtime/sim/sim_net.hpp — the links between the ranks of a simulated world: latencies, bandwidth,
// clogs, and lost peers.
//
// Frames of one channel keep their order; other frames may overtake each other, by the seed. A
// frame is read from its sender's buffer when it leaves, not when it is sent. When a rank dies, its
// peers' operations with it fail after detect_after. A SimNet may connect only some of the world's
// ranks, which it numbers from 0. It must live as long as the nets attached to it, and they as long
// as the world runs.
//
//   SimNet links(world, {.latency = 20us});   Net net(links.attach(rank));
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/io/net.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem {

class SimNet {
 public:
  struct Options {
    Duration latency = std::chrono::microseconds(20);  // each frame takes this, up to twice
    double bytes_per_s = 10e9;
    std::size_t window_frames = 4;  // of a channel: sent and not received
    Duration detect_after = std::chrono::milliseconds(50);
    std::uint32_t first = 0;  // the world's rank that has number 0 here
    std::uint32_t ranks = 0;  // how many; 0: all from `first` on
  };
  SimNet(SimWorld& world, Options options);
  ~SimNet();
  SimNet(const SimNet&) = delete;
  SimNet& operator=(const SimNet&) = delete;

  [[nodiscard]] std::unique_ptr<NetBackend> attach(std::uint32_t rank);

  /// Delays all frames from `from` to `to` for `duration`.
  void clog(std::uint32_t from, std::uint32_t to, Duration duration);
  /// Makes all operations of `rank` fail from now on (before bury() of a dead rank).
  void cut(std::uint32_t rank) { break_all(rank, rank); }
  /// Does so at the n-th send or receive of `rank`, counted from 0.
  void cut_at(std::uint32_t rank, std::uint64_t n) noexcept { cut_at_[rank] = n; }
  /// Returns the number of sends and receives of `rank` so far, and those of all ranks that have
  /// not ended.
  [[nodiscard]] std::uint64_t operations(std::uint32_t rank) const noexcept {
    return operations_[rank];
  }
  [[nodiscard]] std::size_t operations_under_way() const noexcept;
  /// Returns the number of frames that have left and were neither received nor dropped with a
  /// broken net.
  [[nodiscard]] std::size_t frames_under_way() const noexcept;
  /// Returns the bytes of the frames from `from` to `to` that have left.
  [[nodiscard]] std::uint64_t bytes_sent(std::uint32_t from, std::uint32_t to) const noexcept {
    return bytes_sent_[from * ranks_ + to];
  }

 private:
  class Endpoint;
  using Link = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;  // from, to, channel
  struct Channel {
    std::deque<NetOp*> sends;  // the first one leaves, if `leaving`
    bool leaving = false;
    std::size_t in_flight = 0;  // left, not received
    TimePoint last_arrival;
    std::deque<std::vector<std::byte>> arrived;
    std::deque<NetOp*> receives;
  };

  void submit(std::uint32_t rank, NetOp& op);
  bool cancel(std::uint32_t rank, NetOp& op) noexcept;
  void abort(std::uint32_t rank, std::uint32_t failed_rank);
  void send_heartbeat(std::uint32_t from, std::uint32_t to, std::size_t place, std::uint16_t word);
  [[nodiscard]] PeerHeartbeats heartbeats_of(std::uint32_t rank, std::uint32_t peer) const noexcept;
  void start_next(const Link& link);
  void leave(const Link& link);
  void arrive(const Link& link, std::vector<std::byte> frame);
  void hand_over(const Link& link);
  void lose(std::uint32_t rank, std::uint32_t peer, std::uint32_t failed_rank);
  void break_all(std::uint32_t rank, std::uint32_t failed_rank);
  void end(std::uint32_t rank, NetOp& op, NetOp::End how);
  [[nodiscard]] std::optional<std::uint32_t>& lost(std::uint32_t rank, std::uint32_t peer) {
    return lost_[rank * ranks_ + peer];
  }

  /// Schedules `event` for `rank`, as numbered in this net.
  void after(Duration delay, std::uint32_t rank, std::function<void()> event) {
    world_.after(delay, options_.first + rank, std::move(event));
  }

  SimWorld& world_;
  Options options_;
  std::uint32_t ranks_;
  Random random_;
  std::map<Link, Channel> channels_;
  std::vector<std::optional<std::uint32_t>> lost_;       // by rank and peer: which rank failed
  std::vector<std::uint64_t> bytes_sent_;                // by sender and receiver
  std::vector<std::uint64_t> operations_;                // by rank: begun so far
  std::vector<std::uint64_t> cut_at_;                    // by rank
  using Pair = std::pair<std::uint32_t, std::uint32_t>;  // from, to
  std::map<Pair, TimePoint> clogged_until_;
  std::map<Pair, TimePoint> last_heartbeat_;  // when it arrives
  std::map<Pair, PeerHeartbeats> heartbeats_;
};

}  // namespace tandem
