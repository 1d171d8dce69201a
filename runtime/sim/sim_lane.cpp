#include "runtime/sim/sim_lane.hpp"

namespace tandem {

SimLane::SimLane(SimWorld& world, std::uint32_t rank, Options options)
    : world_(world),
      rank_(rank),
      options_(options),
      random_(world.random().fork("lane").fork(rank)) {}

void SimLane::work_there(ComputeLane& lane) {
  if (queued_++ == 0) {
    next_turn(lane);
  }
}

void SimLane::next_turn(ComputeLane& lane) {
  world_.after(Duration(random_.between(1, 2 * options_.job_time.count())), rank_, [this, &lane] {
    lane.run_next();
    if (--queued_ > 0) {
      next_turn(lane);
    }
  });
}

}  // namespace tandem
