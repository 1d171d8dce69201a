// engine/distributed/part_ranks.hpp — the collectives of a rank whose model has units of several
// parts (UnitSpec::parts): experts that are spread over ranks.
//
// Of W ranks and P parts, D = W / P ranks hold a part: rank r part r / D, as the r % D-th of them.
// They gather it from each other and reduce its gradients among themselves. The ranks r, r + D, r +
// 2 D, ... hold one part each; within this exchange group the compute lane sends what other ranks'
// parts are to compute, and gets it back. Both groups have back ends of their own, so that neither
// waits for what all ranks do. The exchange group's rank j is rank j * D + d. So the blocks of a
// gradient, added one after another and each in its ranks' order, are added in the order of all
// ranks: the bits of experts that every rank has. The compute lane exchanges on a loop of its own,
// which runs there and only meanwhile: a hand-over to the rank's loop and back would be two
// wake-ups of sleeping threads more. Thread rule: of the rank's loop's thread, but all_to_all(),
// which is the compute lane's. Failure: that of the back ends (PeerLost). What ends or abandons the
// groups comes when no lane exchanges: a step's task does not end before its lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "actors/collectives/collectives.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/types/model.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"

namespace tandem {

class PartRanks final : public RankExchange {
 public:
  /// Puts a back end that knows the units' blocks around one that knows host memory.
  using Stage =
      std::function<std::unique_ptr<CollectiveBackend>(std::unique_ptr<CollectiveBackend> part)>;
  /// Blocks until all ranks are connected; they all make one, after their common back end. The
  /// arguments outlive it.
  PartRanks(Communicator& communicator, EventLoop& loop, CpuPool& pool, std::int64_t parts,
            const Stage& stage = {});

  void start(Scope& scope);
  void close();
  void abandon(std::string_view why) noexcept;

  /// Of the ranks that hold this rank's part.
  [[nodiscard]] CollectivesAddress collectives() const { return collectives_.address(); }

  [[nodiscard]] std::int64_t ranks() const noexcept override { return parts_; }
  void all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes) override;

 private:
  std::int64_t parts_;
  EventLoop lane_loop_;
  CpuPool lane_pool_;                            // what is large is copied by its thread
  std::unique_ptr<CollectiveBackend> part_;      // D ranks
  std::unique_ptr<CollectiveBackend> exchange_;  // P ranks, on the lane's loop
  Collectives collectives_;
};

}  // namespace tandem
