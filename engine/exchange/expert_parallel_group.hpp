// engine/exchange/expert_parallel_group.hpp — the collectives of a rank whose model spreads
// experts over ranks (UnitSpec::ep_size).
//
// With W ranks and expert-parallel size P, D = W / P ranks hold the same slice of the experts: rank
// r holds slice r / D, as replica r % D. The replicas gather the slice from each other and reduce
// its gradients among themselves. The ranks r, r + D, r + 2 D, ... hold one slice each and form the
// exchange group: its compute lanes send tokens to the rank whose slice computes them, and back.
// Both groups have back ends of their own, so neither waits for collectives of all ranks. The
// exchange group's rank j is rank j * D + d. So a gradient's blocks are added in the order of all
// ranks, with the same bits as if every rank had all experts.
// Thread rule: the rank's loop thread; exchange() is for the compute lane.
// Failure: that of the back ends (PeerLost).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "actors/collectives/collectives.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/exchange/lane_exchange.hpp"
#include "engine/types/model.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"

namespace tandem {

class ExpertParallelGroup {
 public:
  /// Wraps a back end for host memory into one for the units' blocks.
  using Stage =
      std::function<std::unique_ptr<CollectiveBackend>(std::unique_ptr<CollectiveBackend> slice)>;
  /// The accelerator that segments compute on, if there is one.
  struct Place {
    Stage stage;
    std::shared_ptr<Gpu> gpu;  // null on a simulated one
  };
  /// The logs that count operations: of the replicas on the loop's thread, of the lane on the
  /// compute lane.
  struct Logs {
    CommsLog* replicas;
    CommsLog* lane;
  };
  /// Blocks until all ranks are connected. Collective, after the back end of all ranks was made.
  /// `units`: their names, for traces. Communicator, loop, pool and logs outlive it.
  ExpertParallelGroup(Communicator& communicator, EventLoop& loop, CpuPool& pool,
                      std::int64_t ep_size, std::vector<std::string> units, const Place& place = {},
                      Logs logs = {});

  /// CollectiveBackend::give_up(), of both groups.
  void give_up(const std::exception& cause) noexcept;

  /// The actor for collectives of the ranks that hold the same slice of the experts.
  [[nodiscard]] Collectives& collectives() noexcept { return collectives_; }

  [[nodiscard]] LaneExchange& exchange() noexcept { return exchange_; }

 private:
  std::unique_ptr<CollectiveBackend> replicas_;  // D ranks: same slice
  LaneExchange exchange_;                        // P ranks: one of each slice
  Collectives collectives_;
};

}  // namespace tandem
