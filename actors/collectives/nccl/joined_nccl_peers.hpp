// actors/collectives/nccl/joined_nccl_peers.hpp — the exchange among ranks of several hosts outside
// of NCCL, through each host's memory and a net between hosts. The NCCL back end uses it in the
// same way as on one host.
//
// All hosts have the same number of ranks, and a host's ranks are neighbours in the order of all
// ranks. The rank at fault is found in the same way as without NCCL (net_waits.hpp): each rank
// publishes which ranks it awaits, heartbeats carry that between hosts, and a deadline follows the
// waits to the rank at their end. The exchange uses one channel of the net.
// Invariant: leave() ends before this object is destroyed.
// Thread rule: the loop's thread, or the owner's while the loop does not run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "actors/collectives/hosts/net_waits.hpp"
#include "actors/collectives/nccl/host_nccl_peers.hpp"
#include "actors/collectives/nccl/net_nccl_peers.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

class JoinedNcclPeers final : public NcclPeers {
 public:
  struct Options {
    NetWaits::Options waits{};
    std::uint32_t channel = 0;
    std::uint32_t outside_ranks = 0;  // as in NetNcclPeers
  };
  /// `frames` connects all ranks, `host` those of this host. When the last owner releases the
  /// object, it runs the loop, which must be idle, to call leave().
  [[nodiscard]] static std::shared_ptr<NcclPeers> make(EventLoop& loop,
                                                       std::unique_ptr<HostNcclPeers> host,
                                                       std::unique_ptr<NetBackend> frames,
                                                       Options options);
  /// For callers that call leave() themselves.
  JoinedNcclPeers(EventLoop& loop, std::unique_ptr<HostNcclPeers> host,
                  std::unique_ptr<NetBackend> frames, Options options);

  /// Tells the other hosts that this rank leaves. No operation may be under way.
  Task<> leave() { return frames_.leave(); }

  void decide(std::uint64_t turn, const NcclLaunch& launch) noexcept override;
  [[nodiscard]] std::optional<NcclLaunch> decided(std::uint64_t turn) noexcept override {
    return host_->decided(turn);
  }
  void has_begun(std::uint64_t turn) noexcept override;
  [[nodiscard]] std::optional<std::uint32_t> behind(std::uint64_t turn) noexcept override;
  void announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept override {
    frames_.announce_failure(failed_rank, cause);
  }
  [[nodiscard]] std::optional<NcclLoss> loss() noexcept override;

  [[nodiscard]] std::uint32_t decider() const noexcept override;
  [[nodiscard]] std::optional<std::uint32_t> waits_for(std::uint64_t turn) noexcept override;
  void ask_for_waits(Waits waits) override { waits_ = std::move(waits); }
  [[nodiscard]] NcclLoss failed_behind(std::uint32_t awaited) const override;

 private:
  [[nodiscard]] Awaited look(Duration at_least);

  std::unique_ptr<HostNcclPeers> host_;
  Net net_;
  NetNcclPeers frames_;
  Waits waits_;
  NetWaits heartbeats_;
};

}  // namespace tandem
