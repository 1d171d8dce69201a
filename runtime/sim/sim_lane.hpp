// runtime/sim/sim_lane.hpp — the thread of a ComputeLane in a simulated world: its functions run in
// virtual time, in their order.
//
// Each function takes a time, drawn from the seed or given, and runs at the end of it.
// It must live as long as its lane.
//
//   SimLane thread(world, rank, {.job_time = 20us});
//   ComputeLane lane(world.loop(rank), "compute", &thread);
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/compute_lane.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem {

class SimLane final : public LaneDriver {
 public:
  struct Options {
    Duration job_time = std::chrono::microseconds(20);  // on average, where times are drawn
    // Returns the time of the n-th function, from 0; empty: times are drawn.
    std::function<Duration(std::uint64_t n)> time_of = {};
  };
  SimLane(SimWorld& world, std::uint32_t rank, Options options);

  void work_there(ComputeLane& lane) override;
  /// Returns the number of functions that are queued or running.
  [[nodiscard]] std::uint64_t queued() const noexcept { return queued_; }

 private:
  void next_turn(ComputeLane& lane);
  [[nodiscard]] Duration next_time();

  SimWorld& world_;
  std::uint32_t rank_;
  Options options_;
  Random random_;
  std::uint64_t queued_ = 0;
  std::uint64_t begun_ = 0;
};

}  // namespace tandem
