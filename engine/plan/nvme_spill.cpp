#include "engine/plan/nvme_spill.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "engine/placement/placement_solver.hpp"

namespace tandem {

namespace {

/// Puts as few of `units`, from the last one on, on NVMe as make the host hold the rest; all, and
/// false, where that is too few.
bool spill_last(const Model& model, std::span<const std::size_t> units, std::int64_t room,
                PlanInput& input) {
  const std::vector<StatePlacement> before = input.shape.engine.placements;
  const auto fits = [&](std::size_t count) {
    std::vector<StatePlacement>& placements = input.shape.engine.placements;
    placements = before;
    for (const std::size_t unit : units.last(count)) {
      placements[unit] = StatePlacement::kNvme;
    }
    return plan_memory(model, input).host_total() <= room;
  };
  std::size_t too_few = 0;
  for (std::size_t enough = units.size(); enough - too_few > 1;) {
    const std::size_t count = std::midpoint(too_few, enough);
    (fits(count) ? enough : too_few) = count;
  }
  return fits(too_few + 1);
}

PlanInput without_shadows(const Model& model, PlanInput input) {
  input.shape.shadows = {};
  input.shape.engine.placements.resize(model.units.size(), StatePlacement::kHost);
  return input;
}

}  // namespace

bool overflows_host(const Model& model, const PlanInput& input, std::int64_t room) {
  return plan_memory(model, without_shadows(model, input)).host_total() > room;
}

std::optional<double> spill_to_nvme(const Model& model, const PlacementProblem& problem,
                                    std::int64_t room, PlanInput& input) {
  const PlanInput stays = without_shadows(model, input);
  std::vector<std::size_t> movable;
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    if (!model.units[unit].frozen() &&
        stays.shape.engine.placements[unit] != StatePlacement::kDevice) {
      movable.push_back(unit);
    }
  }
  struct Choice {
    std::vector<StatePlacement> placements;
    double step_s;
    double on_host;
  };
  std::vector<Choice> choices;
  bool fits = true;
  for (std::size_t end = movable.size(); fits && end > 0; --end) {
    PlanInput spilled = stays;
    fits = spill_last(model, std::span(movable).first(end), room, spilled);
    if (fits || choices.empty()) {
      const std::vector<StatePlacement>& placements = spilled.shape.engine.placements;
      choices.push_back(
          {placements, predict_step_s(problem, placements), problem.host_bytes_of(placements)});
    }
  }
  if (choices.empty()) {
    return std::nullopt;
  }
  const double shortest = std::ranges::min(choices, {}, &Choice::step_s).step_s;
  const auto rank_of = [shortest](const Choice& choice) {
    return std::pair(choice.step_s > kAsGood * shortest, -choice.on_host);
  };
  const Choice& best = *std::ranges::min_element(choices, {}, rank_of);
  input.shape.engine.placements = best.placements;
  return best.step_s;
}

}  // namespace tandem
