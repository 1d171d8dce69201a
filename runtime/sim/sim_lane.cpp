#include "runtime/sim/sim_lane.hpp"

#include <utility>

namespace tandem {

SimLane::SimLane(SimWorld& world, std::uint32_t rank, Options options)
    : world_(world),
      rank_(rank),
      options_(std::move(options)),
      random_(world.random().fork("lane").fork(rank)) {}

void SimLane::work_there(ComputeLane& lane) {
  if (queued_++ == 0) {
    next_turn(lane);
  }
}

Duration SimLane::next_time() {
  const std::uint64_t n = begun_++;
  return options_.time_of ? options_.time_of(n)
                          : Duration(random_.between(1, 2 * options_.job_time.count()));
}

void SimLane::next_turn(ComputeLane& lane) {
  world_.after(next_time(), rank_, [this, &lane] {
    lane.run_next();
    if (--queued_ > 0) {
      next_turn(lane);
    }
  });
}

}  // namespace tandem
