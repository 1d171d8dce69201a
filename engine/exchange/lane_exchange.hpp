// engine/exchange/lane_exchange.hpp — the all-to-all of a group of ranks, issued by the compute
// lane in the middle of a segment.
//
// It runs on a loop of its own, which runs on the lane's thread and only meanwhile: the lane waits
// for what comes anyway, and a hand-over to the rank's loop and back would be two wake-ups of
// sleeping threads more.
// Thread rule: the compute lane, but for making it and give_up().
// Failure: that of the back end (PeerLost). It ends or gives up only while no lane exchanges,
// because a step's task does not end before its lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/comms_log.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/types/model.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"

namespace tandem {

class LaneExchange final : public RankExchange {
 public:
  /// Blocks until all ranks of `group` are connected, whose number is also CommsLog's `log_group`.
  /// `log` (null: nothing is counted) outlives it.
  LaneExchange(Communicator& communicator, const RankGroup& group, CommsLog* log,
               std::uint8_t log_group);

  /// CollectiveBackend::give_up().
  void give_up(const std::exception& cause) noexcept { backend_->give_up(cause); }

  [[nodiscard]] std::int64_t ranks() const noexcept override { return ranks_; }
  void all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes) override;

 private:
  std::int64_t ranks_;
  CommsLog* log_;
  std::uint8_t log_group_;
  EventLoop loop_;
  CpuPool pool_;  // what is large is copied by its thread
  std::unique_ptr<CollectiveBackend> backend_;
};

}  // namespace tandem
