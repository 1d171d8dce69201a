// tests/support/toy/placements.hpp — placements of the toy model's five units that between them
// meet every case, and a walk through them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "engine/layout/sharding.hpp"
#include "engine/types/state_placement.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem::toy {

inline constexpr StatePlacement kHost = StatePlacement::kHost;
inline constexpr StatePlacement kDevice = StatePlacement::kDevice;
inline constexpr StatePlacement kStreamed = StatePlacement::kStreamed;
inline constexpr StatePlacement kNvme = StatePlacement::kNvme;

inline const std::vector<StatePlacement> kAllPlacements[] = {
    {kDevice, kDevice, kDevice, kDevice, kDevice},
    {kStreamed, kStreamed, kStreamed, kStreamed, kStreamed},
    {kDevice, kStreamed, kHost, kStreamed, kHost},
    {kHost, kDevice, kStreamed, kHost, kDevice},
};

/// Those, and none: where the engine puts it by itself.
inline std::vector<std::vector<StatePlacement>> default_and_all_placements() {
  std::vector<std::vector<StatePlacement>> all = {{}};
  all.insert(all.end(), std::begin(kAllPlacements), std::end(kAllPlacements));
  return all;
}

/// visit(setting, what): `setting` at each placement, stage and overlap; some of them with forced
/// misses, some with units that stay replicated.
template <class Visit>
void in_every_placement(Setting setting, const std::vector<Overlap>& overlaps, Visit visit) {
  for (const auto& placements : kAllPlacements) {
    setting.placements = placements;
    for (const int stage : {0, 1, 2, 3}) {
      for (const Overlap overlap : overlaps) {
        setting.stage = stage;
        setting.overlap = overlap;
        setting.forced_misses = overlap == Overlap::kFull && stage % 2 == 1 ? 0.5 : 0;
        setting.persistent_elements = stage == 3 && overlap == Overlap::kOffload ? 100 : 0;
        visit(setting, fmt::format("stage {}, {}, placements {}", stage, name_of(overlap),
                                   &placements - kAllPlacements));
      }
    }
  }
}

/// Elements that a rank has of the first two units.
inline std::int64_t first_two(int world) {
  std::size_t elements = 0;
  for (std::size_t unit = 0; unit < 2; ++unit) {
    elements += UnitLayout::make(static_cast<std::size_t>(model().units[unit].numel()),
                                 static_cast<std::uint32_t>(world))
                    .shard_elements;
  }
  return static_cast<std::int64_t>(elements);
}

}  // namespace tandem::toy
