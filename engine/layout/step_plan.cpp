#include "engine/layout/step_plan.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

namespace {

Visit make_visit(const Model& model, const SlotClasses& classes, Phase phase, std::size_t segment,
                 std::size_t micro_step) {
  Visit visit{.phase = phase, .segment = segment, .micro_step = micro_step};
  for (const std::size_t unit : units_of(model.segments[segment])) {
    const std::int64_t ep_size = model.units[unit].ep_size;
    visit.uses.push_back({.unit = unit,
                          .pool = classes.weights.pool_of[unit],
                          .gradient_pool = classes.gradients.pool_of[unit],
                          .communicator = ep_size > 1 ? kExpertParallel : kWorld,
                          .blocks = static_cast<std::uint64_t>(ep_size)});
  }
  return visit;
}

/// Numbers the uses along the plan and links each to the next use of the same unit (cyclically).
void number_uses(StepPlan& plan, std::size_t pools) {
  plan.tickets.assign(pools, 0);
  for (Visit& visit : plan.visits) {
    for (UnitUse& use : visit.uses) {
      use.order = plan.gathers[use.communicator]++;
      if (use.pool != kNoPool) {
        use.ticket = plan.tickets[use.pool]++;
      }
    }
  }
  std::map<std::size_t, std::uint64_t> next;
  for (int round = 0; round < 2; ++round) {  // the second round sees the following pass
    for (auto visit = plan.visits.rbegin(); visit != plan.visits.rend(); ++visit) {
      for (auto use = visit->uses.rbegin(); use != visit->uses.rend(); ++use) {
        if (use->pool == kNoPool) {
          continue;
        }
        if (round == 1) {
          const std::uint64_t known = next.at(use->unit);
          use->next_use = known > use->ticket ? known : known + plan.tickets[use->pool];
        }
        next[use->unit] = use->ticket;
      }
    }
  }
}

void number_gradients(StepPlan& plan, std::size_t pools) {
  plan.gradient_tickets.assign(pools, 0);
  std::map<std::pair<std::size_t, std::size_t>, UnitUse*> last;  // [micro_step, unit]
  for (Visit& visit : plan.visits) {
    if (visit.phase != Phase::kBackward) {
      continue;
    }
    for (UnitUse& use : visit.uses) {
      if (use.gradient_pool == kNoPool) {
        continue;
      }
      UnitUse*& seen = last[{visit.micro_step, use.unit}];
      if (seen == nullptr) {
        use.first_gradient = true;
        use.gradient_ticket = plan.gradient_tickets[use.gradient_pool]++;
      }
      seen = &use;
    }
  }
  for (const auto& [key, use] : last) {
    use->last_gradient = true;
  }
}

}  // namespace

StepPlan StepPlan::training(const Model& model, const SlotClasses& classes,
                            std::size_t micro_steps) {
  StepPlan plan;
  const std::size_t count = model.segments.size();
  for (std::size_t a = 0; a < micro_steps; ++a) {
    for (std::size_t s = 0; s < count; ++s) {
      plan.visits.push_back(make_visit(model, classes, Phase::kForward, s, a));
    }
    for (std::size_t s = count; s-- > 0;) {
      plan.visits.push_back(make_visit(model, classes, Phase::kBackward, s, a));
    }
  }
  number_uses(plan, classes.weights.pools());
  number_gradients(plan, classes.gradients.pools());
  return plan;
}

StepPlan StepPlan::inference(const Model& model, const SlotClasses& classes) {
  StepPlan plan;
  for (std::size_t s = 0; s < model.segments.size(); ++s) {
    plan.visits.push_back(make_visit(model, classes, Phase::kForward, s, 0));
  }
  number_uses(plan, classes.weights.pools());
  plan.gradient_tickets.assign(classes.gradients.pools(), 0);
  return plan;
}

std::vector<std::uint64_t> StepPlan::first_visits(std::size_t unit_count) const {
  std::vector<std::uint64_t> first(unit_count, std::numeric_limits<std::uint64_t>::max());
  for (std::size_t v = 0; v < visits.size(); ++v) {
    for (const UnitUse& use : visits[v].uses) {
      TANDEM_CHECK(use.unit < unit_count, "a visit uses units of the model");
      first[use.unit] = std::min<std::uint64_t>(first[use.unit], v);
    }
  }
  return first;
}

}  // namespace tandem
