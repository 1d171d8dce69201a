// engine/placement/placement_solver.hpp — the placements with which a step is shortest, by the
// model of placement_model.hpp.
//
// With few units it looks at every placement. With more it looks at numbers: d of them on the
// device, from the first one in forward order on, and s of the others streamed, spread, or from one
// end; coarsely at first, then nearer and nearer to the best. Moving single units from there on was
// measured (bench_placement: 1.005 instead of 1.018 of the best, in the worst of 48 cases, for
// eighteen times the predictions) and is less than what the model itself is off.
// Among placements that are as good as the best within half a percent it prefers those that still
// are with a pool that is a third slower: the model has the pool's speed as it is alone, measured
// once. Beside a step, whose copies share the host's memory, bench_overlap finds passes 1.08 to
// 1.16 times as long, measurements of a shared host differ by a fifth, and a pool without slack
// cannot make up for what a late one cost. Where compute is the longest slack costs nothing. Then
// one with the units of the first two segments on the device, as far as they fit: they have no
// window (their gradients come last, their weights are needed first). Then the one with the least
// device memory: activations have a use for it. Pure; some hundred predictions, or all 6561 of
// eight units: any thread.
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

/// As good as the best: within half a percent.
inline constexpr double kAsGood = 1.005;

/// How streamed units lie among those that are not on the device.
enum class StreamOrder : std::uint8_t { kSpread, kFirst, kLast };

/// `device` of the movable units, in forward order, on the device as far as there is room, and
/// `streamed` of the others.
[[nodiscard]] std::vector<StatePlacement> placements_by_count(const PlacementProblem& problem,
                                                              std::size_t device,
                                                              std::size_t streamed,
                                                              StreamOrder order);

[[nodiscard]] PlacementChoice choose_placements(const PlacementProblem& problem);

}  // namespace tandem
