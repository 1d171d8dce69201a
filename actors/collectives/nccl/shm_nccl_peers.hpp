// actors/collectives/nccl/shm_nccl_peers.hpp — the exchange among ranks of one host outside of
// NCCL, through shared memory.
//
// Each rank has a page that all of them map. It has the number of turns that the rank has begun
// and, for ranks of other hosts, the numbers that this rank has received. The first rank's page
// also has the latest decisions, in a ring. A ShmSync reports failures: a rank publishes which rank
// failed before its socket closes, and a socket that closes without a goodbye means a dead process.
// So peers learn of both at once, long before NCCL notices.
// Thread rule: the loop's thread, but connect() blocks and comes before the loop runs.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/collectives/nccl/host_nccl_peers.hpp"
#include "actors/collectives/shm/shm_arena.hpp"
#include "actors/collectives/shm/shm_sync.hpp"

namespace tandem {

class ShmNcclPeers final : public HostNcclPeers {
 public:
  struct Options {
    std::uint32_t rank = 0;           // of this host
    std::uint32_t world = 1;          // number of ranks of this host
    std::string job;                  // as in ShmBootstrapOptions
    std::uint32_t first_rank = 0;     // the number of rank 0 among all
    std::uint32_t all_ranks = 0;      // 0: there is one host
    std::uint32_t outside_ranks = 0;  // this and the next two: as in ShmSync
    std::shared_ptr<RunWaits> run_waits{};
    std::shared_ptr<GroupWaits> group_waits{};
    Duration connect_timeout = std::chrono::seconds(300);
    Duration heartbeat = std::chrono::seconds(5);
  };
  /// Blocks until all ranks of the job are connected. The loop outlives it. Throws Error(kPeer),
  /// which names the missing rank.
  [[nodiscard]] static std::unique_ptr<ShmNcclPeers> connect(EventLoop& loop,
                                                             const Options& options);

  void decide(std::uint64_t turn, const NcclLaunch& launch) noexcept override;
  [[nodiscard]] std::optional<NcclLaunch> decided(std::uint64_t turn) noexcept override;
  void has_begun(std::uint64_t turn) noexcept override;
  void announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept override;
  [[nodiscard]] std::optional<NcclLoss> loss() noexcept override;
  void ask_for_waits(Waits waits) override { sync_.ask_for_waits(std::move(waits)); }
  /// Follows the waits that are published with heartbeats.
  [[nodiscard]] NcclLoss failed_behind(std::uint32_t awaited) const override;

  [[nodiscard]] std::uint64_t begun(std::uint32_t rank) const noexcept override;
  void has_received(std::uint32_t rank, std::uint64_t begun) noexcept override;
  [[nodiscard]] std::uint32_t first_rank() const noexcept override { return sync_.name_of(0); }

  [[nodiscard]] std::uint32_t world() const noexcept override { return sync_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return sync_.rank(); }
  void say_awaited(std::uint32_t rank, Awaited awaited) noexcept override {
    sync_.say_awaited(rank, awaited);
  }
  [[nodiscard]] Awaited awaited(std::uint32_t rank) const noexcept override {
    return sync_.awaited(rank);
  }

 private:
  struct Page;

  ShmNcclPeers(EventLoop& loop, std::unique_ptr<ShmArena> arena, ShmControl& control, Page& page,
               std::vector<ShmPeer> peers, const Options& options);
  [[nodiscard]] const Page& page_of(std::uint32_t rank) const noexcept;

  std::unique_ptr<ShmArena> arena_;
  std::shared_ptr<GroupWaits> group_waits_;
  ShmSync sync_;
  Page& own_;
};

}  // namespace tandem
