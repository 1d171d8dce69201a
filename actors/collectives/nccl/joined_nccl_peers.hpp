// actors/collectives/nccl/joined_nccl_peers.hpp — what ranks of several hosts tell each other
// beside NCCL: by their host's memory, and by a net between hosts. The back end over it is that of
// one host.
//
// Every host has as many ranks as the others, which are neighbours in the order of all ranks.
// The rank that holds the others up is found as over hosts without NCCL (net_waits.hpp): each says
// for whom it waits, beats carry that from host to host, and a deadline follows the waits to the
// rank at their end.
// The net: one channel. Invariant: leave() has ended before this does.
// Thread rule: the loop's thread, or of the owner's while the loop does not run.
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
    std::uint32_t outside_ranks = 0;  // as NetNcclPeers has it
  };
  /// `frames` has all ranks, `host` those of this host. The object runs the loop when its last
  /// owner lets go: it leaves. The loop is idle then.
  [[nodiscard]] static std::shared_ptr<NcclPeers> make(EventLoop& loop,
                                                       std::unique_ptr<HostNcclPeers> host,
                                                       std::unique_ptr<NetBackend> frames,
                                                       Options options);
  /// For those who call leave() themselves.
  JoinedNcclPeers(EventLoop& loop, std::unique_ptr<HostNcclPeers> host,
                  std::unique_ptr<NetBackend> frames, Options options);

  /// Says to the other hosts that this rank leaves; no operation is under way.
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
  NetWaits hearts_;
};

}  // namespace tandem
