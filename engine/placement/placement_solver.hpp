// engine/placement/placement_solver.hpp — finds the placements with the shortest step, by the model
// of placement_model.hpp.
//
// With few units it tries every placement. With more it tries counts: d units on the device, from
// the first one in forward order on, and s of the others streamed, spread evenly or from one end;
// coarsely at first, then finer around the best. Moving single units after that was measured
// (bench_placement: 1.005 instead of 1.018 of the best, in the worst of 48 cases, for eighteen
// times the predictions); it gains less than the model's own error. Among placements within half a
// percent of the best it prefers, first, those that are also good with a pool that is a third
// slower, because the pool's speed was measured once, without a step beside it. Beside a step,
// whose copies share the host's memory, bench_overlap finds passes 1.08 to 1.16 times as long;
// measurements on a shared host differ by a fifth; and a pool without slack cannot catch up. If
// compute takes longest, slack costs nothing. Second, those with the units of the first two
// segments on the device, if they fit: their gradients come last and their weights are needed
// first. Third, the one with the least device memory, which activations can use. Pure; some hundred
// predictions, or all 6561 for eight units. Any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/placement/placement_model.hpp"

namespace tandem {

struct PlacementChoice {
  std::vector<StatePlacement> placements;  // [unit]
  double step_s = 0;                       // predicted
  double host_step_s = 0;                  // with all state on the host
  double device_bytes = 0;
  bool fits = true;  // false: not even all on the host, which this is then
  std::size_t predictions = 0;
};

/// A step time up to this factor times the best one counts as equally good.
inline constexpr double kAsGood = 1.005;

/// Which of the units that are not on the device are streamed.
enum class StreamOrder : std::uint8_t { kSpread, kFirst, kLast };

/// Returns a placement with `device` of the movable units on the device, in forward order as far as
/// there is room, and `streamed` of the others streamed.
[[nodiscard]] std::vector<StatePlacement> placements_by_count(const PlacementProblem& problem,
                                                              std::size_t device,
                                                              std::size_t streamed,
                                                              StreamOrder order);

[[nodiscard]] PlacementChoice choose_placements(const PlacementProblem& problem);

}  // namespace tandem
