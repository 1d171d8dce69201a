// actors/collectives/nccl/net_nccl_peers.hpp — the exchange between hosts outside of NCCL, by
// frames of a Net.
//
// A rank exchanges frames with the ranks that have its local rank on other hosts, and writes what
// it receives into its host's memory.
//   decisions   Rank 0 sends them to the first rank of each other host, which passes them on.
//   turns begun A rank sends the number to the first host every kSayEvery turns, so that rank 0
//               does not get too far ahead, and to all peers when say_begun() is called.
//   failures    A rank sends the failed rank and the cause to all peers. Then it aborts the net, so
//               that every rank of every host learns of the failed rank.
//   the end     A rank that leaves sends its number of begun turns. A peer that disconnects without
//               doing so has failed; so has a peer that left before a turn that others have begun.
// A peer's frame is copied, and the copy is checked.
// Thread rule: the loop's thread, or the owner's while the loop does not run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/collectives/nccl/host_nccl_peers.hpp"
#include "runtime/event.hpp"
#include "runtime/io/net.hpp"
#include "runtime/scope.hpp"

namespace tandem {

class NetNcclPeers {
 public:
  static constexpr std::uint64_t kSayEvery = NcclPeers::kMostAhead / 4;

  /// `net` connects all ranks. Failures may also name the `outside_ranks` numbers after theirs. No
  /// other traffic may use the channel. Loop, host and net outlive this object.
  NetNcclPeers(EventLoop& loop, HostNcclPeers& host, Net& net, std::uint32_t channel,
               std::uint32_t outside_ranks);
  NetNcclPeers(const NetNcclPeers&) = delete;
  NetNcclPeers& operator=(const NetNcclPeers&) = delete;

  /// Sends rank 0's new decisions.
  void tell_decisions() noexcept;
  void has_begun(std::uint64_t turn) noexcept;
  /// Sends this rank's number of begun turns to all peers that have an older number.
  void say_begun() noexcept;
  /// Reports a failure to all ranks of all hosts; the first cause counts.
  void announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept;
  [[nodiscard]] std::optional<NcclLoss> loss() const noexcept;

  /// Call it before destruction: sends what is left to send, for a bounded time. Receives nothing
  /// afterwards.
  Task<> leave();

 private:
  enum class Kind : std::uint32_t { kDecisions, kBegun, kFailure, kLeaves };
  // The frames as they go over the net, without padding.
  struct Turn {
    std::uint32_t comm, kind;
    std::uint64_t types, number, phase, bytes;
  };
  struct Frame {
    static constexpr std::size_t kTurns = 12;
    static constexpr std::size_t kBytes = kTurns * sizeof(Turn);

    Kind kind;
    std::uint32_t count;   // of decisions: turns; of a failure: bytes of the cause; else 0
    std::uint64_t number;  // of decisions: first turn; of a failure: the rank; else turns begun
    std::array<std::byte, kBytes> content;

    static constexpr std::size_t kHead = 16;
    [[nodiscard]] std::size_t bytes() const noexcept {
      return kHead + (kind == Kind::kDecisions ? count * sizeof(Turn) : count);
    }
  };
  struct Peer {
    std::uint32_t rank;
    std::uint64_t decided = 0;  // number of decisions sent
    std::uint64_t begun = 0;    // number of begun turns last sent
    bool begun_is_due = false;  // a newer number must be sent
    bool is_closed = false;     // the last frame was sent
    bool has_left = false;
    Event news;
    StopSource stop;
    Frame out{};
    Frame in{};
  };

  static Task<> speak(NetNcclPeers* self, Peer* peer);
  static Task<> listen(NetNcclPeers* self, Peer* peer);
  static Task<> give_up(NetNcclPeers* self);
  Task<> all_told(Duration at_most);
  [[nodiscard]] bool write_next(Peer& peer) noexcept;
  void write_decisions(Peer& peer) noexcept;
  /// Returns true if there may be more frames.
  [[nodiscard]] bool take(Peer& peer, std::size_t bytes);
  [[nodiscard]] bool take_decisions(const Frame& frame);
  void lose(const Peer& peer, const PeerLost& lost);
  [[nodiscard]] bool is_name(std::uint64_t rank) const noexcept {
    return rank < net_.world() + outside_ranks_;
  }

  EventLoop& loop_;
  HostNcclPeers& host_;
  Net& net_;
  std::uint32_t channel_;
  std::uint32_t outside_ranks_;
  std::uint64_t begun_ = 0;
  std::uint64_t handed_on_ = 0;  // number of decisions passed on
  std::optional<NcclLoss> failure_;
  bool leaving_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::size_t speaking_ = 0;
  Scope scope_;
};

}  // namespace tandem
