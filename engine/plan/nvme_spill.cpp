#include "engine/plan/nvme_spill.hpp"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "engine/placement/placement_solver.hpp"

namespace tandem {

namespace {

constexpr std::size_t kFewUnits = 8;       // of which every set is looked at
constexpr double kShorter = 1 - 1e-3;      // a step that is worth going on
constexpr std::size_t kInVain = 4;         // looks around that led to nothing shorter
constexpr std::size_t kSwappedUnits = 64;  // beyond, pairs are too many to look at

PlanInput without_shadows(const Model& model, PlanInput input) {
  input.shape.shadows = {};
  input.shape.engine.placements.resize(model.units.size(), StatePlacement::kHost);
  return input;
}

/// Chooses the units that stay on the host: sets of the movable ones whose state there fits.
class Spill {
 public:
  using Stays = std::vector<bool>;  // [movable unit]
  struct Choice {
    std::vector<StatePlacement> placements;
    double step_s;
    double on_host;
  };

  Spill(const Model& model, const PlacementProblem& problem, std::int64_t room, PlanInput input)
      : model_(model), problem_(problem), room_(room), input_(std::move(input)) {
    base_ = input_.shape.engine.placements;
    for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
      if (!model.units[unit].frozen() && base_[unit] != StatePlacement::kDevice) {
        movable_.push_back(unit);
      }
    }
    const Stays none(movable_.size(), false);
    const std::int64_t least = host_total(none);
    budget_ = room - least;
    for (std::size_t at = 0; at < movable_.size(); ++at) {
      Stays one = none;
      one[at] = true;
      cost_.push_back(host_total(one) - least);
    }
  }

  /// Absent: no unit can leave. All units where even that does not fit.
  std::optional<Choice> best() {
    if (movable_.empty()) {
      return std::nullopt;
    }
    if (movable_.size() <= kFewUnits) {
      look_at_all();
    } else {
      look_at_runs();
      improve();
    }
    if (choices_.empty()) {
      add(Stays(movable_.size(), false));
    }
    const double shortest = shortest_->second.step_s;
    const auto rank_of = [shortest](const auto& entry) {
      return std::pair(entry.second.step_s > kAsGood * shortest, -entry.second.on_host);
    };
    // The last of equal units leave: they are needed last in a forward pass.
    auto backwards = choices_ | std::views::reverse;
    return std::ranges::min_element(backwards, {}, rank_of)->second;
  }

 private:
  [[nodiscard]] std::vector<StatePlacement> placements_of(const Stays& stays) const {
    std::vector<StatePlacement> placements = base_;
    for (std::size_t at = 0; at < movable_.size(); ++at) {
      if (!stays[at]) {
        placements[movable_[at]] = StatePlacement::kNvme;
      }
    }
    return placements;
  }
  [[nodiscard]] std::int64_t host_total(const Stays& stays) {
    input_.shape.engine.placements = placements_of(stays);
    return plan_memory(model_, input_).host_total();
  }
  /// Bytes that are left on the host, if those of each unit were a cost of its own. The buffer that
  /// state passes through is as large as the largest unit there, so there may be a little more.
  [[nodiscard]] std::int64_t slack(const Stays& stays) const {
    std::int64_t bytes = budget_;
    for (std::size_t at = 0; at < stays.size(); ++at) {
      bytes -= stays[at] ? cost_[at] : 0;
    }
    return bytes;
  }

  void add(const Stays& stays) {
    const std::vector<StatePlacement> placements = placements_of(stays);
    const auto added = choices_
                           .emplace(stays, Choice{placements, predict_step_s(problem_, placements),
                                                  problem_.host_bytes_of(placements)})
                           .first;
    if (shortest_ == choices_.end() || added->second.step_s < shortest_->second.step_s) {
      shortest_ = added;
    }
  }
  /// Leaves out what does not fit, and what leaves nothing to be done.
  void look(const Stays& stays) {
    if (!choices_.contains(stays) && std::ranges::find(stays, false) != stays.end() &&
        host_total(stays) <= room_) {
      add(stays);
    }
  }

  void look_at_all() {
    for (std::size_t set = 0; set < std::size_t{1} << movable_.size(); ++set) {
      Stays stays;
      for (std::size_t at = 0; at < movable_.size(); ++at) {
        stays.push_back((set >> at & 1) != 0);
      }
      look(stays);
    }
  }

  /// All units, and runs that leave, each as short as it can be, behind each of which all stay.
  void look_at_runs() {
    look(Stays(movable_.size(), false));
    for (std::size_t end = movable_.size(); end > 0; --end) {
      Stays stays(movable_.size(), true);
      for (std::size_t at = end; at-- > 0 && slack(stays) < 0;) {
        stays[at] = false;
      }
      look(stays);
    }
  }

  /// Lets units back to the host as long as the rest fits, the largest first.
  [[nodiscard]] Stays filled(Stays stays) {
    std::vector<std::size_t> away;
    for (std::size_t at = 0; at < stays.size(); ++at) {
      if (!stays[at]) {
        away.push_back(at);
      }
    }
    std::ranges::sort(away, std::ranges::greater(),
                      [this](std::size_t at) { return std::pair(cost_[at], at); });
    for (const std::size_t at : away) {
      stays[at] = true;
      stays[at] = slack(stays) >= 0 || host_total(stays) <= room_;
    }
    return stays;
  }

  /// Lets units other than `kept` leave until the rest fits: the smallest that is enough, else the
  /// largest; of equal ones the last.
  [[nodiscard]] Stays fitting(Stays stays, std::size_t kept) const {
    for (std::int64_t lacks = -slack(stays); lacks > 0;) {
      std::size_t chosen = stays.size();
      for (std::size_t at = stays.size(); at-- > 0;) {
        if (!stays[at] || at == kept) {
          continue;
        }
        const bool better =
            chosen == stays.size() ||
            (cost_[chosen] < lacks ? cost_[at] > cost_[chosen]
                                   : cost_[at] >= lacks && cost_[at] < cost_[chosen]);
        chosen = better ? at : chosen;
      }
      if (chosen == stays.size()) {
        break;
      }
      stays[chosen] = false;
      lacks -= cost_[chosen];
    }
    return stays;
  }

  /// From the shortest steps so far, one after another: each unit to the other side, and pairs that
  /// change sides; until a few of these in a row led to nothing shorter.
  void improve() {
    std::set<Stays> left;
    for (std::size_t in_vain = 0; in_vain < kInVain;) {
      const auto next = shortest_without(left);
      if (next == choices_.end()) {
        return;
      }
      const Stays from = next->first;
      left.insert(from);
      const double before = shortest_->second.step_s;
      look_around(from);
      in_vain = shortest_->second.step_s < kShorter * before ? 0 : in_vain + 1;
    }
  }

  [[nodiscard]] std::map<Stays, Choice>::iterator shortest_without(const std::set<Stays>& left) {
    auto shortest = choices_.end();
    for (auto one = choices_.begin(); one != choices_.end(); ++one) {
      if (!left.contains(one->first) &&
          (shortest == choices_.end() || one->second.step_s < shortest->second.step_s)) {
        shortest = one;
      }
    }
    return shortest;
  }

  void look_around(const Stays& from) {
    for (std::size_t at = 0; at < from.size(); ++at) {
      Stays other = from;
      other[at] = !from[at];
      other = fitting(std::move(other), at);
      look(other);
      look(filled(std::move(other)));
      for (std::size_t with = 0; with < from.size() && from.size() <= kSwappedUnits; ++with) {
        if (from[at] && !from[with]) {
          Stays swapped = from;
          swapped[at] = false;
          swapped[with] = true;
          look(swapped);
        }
      }
    }
  }

  const Model& model_;
  const PlacementProblem& problem_;
  std::int64_t room_;
  PlanInput input_;
  std::vector<StatePlacement> base_;
  std::vector<std::size_t> movable_;
  std::int64_t budget_ = 0;         // bytes for state of units that stay
  std::vector<std::int64_t> cost_;  // [movable unit] of its state on the host
  std::map<Stays, Choice> choices_;
  std::map<Stays, Choice>::iterator shortest_ = choices_.end();
};

}  // namespace

bool overflows_host(const Model& model, const PlanInput& input, std::int64_t room) {
  return plan_memory(model, without_shadows(model, input)).host_total() > room;
}

std::optional<double> spill_to_nvme(const Model& model, const PlacementProblem& problem,
                                    std::int64_t room, PlanInput& input) {
  const auto best = Spill(model, problem, room, without_shadows(model, input)).best();
  if (!best) {
    return std::nullopt;
  }
  input.shape.engine.placements = best->placements;
  return best->step_s;
}

}  // namespace tandem
