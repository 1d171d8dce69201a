#include "engine/placement/placement_solver.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace tandem {
namespace {

constexpr double kSlowerPool = 0.67;    // that of a step, over one that is measured alone
constexpr std::size_t kFewUnits = 8;    // of which every placement is looked at: 6561
constexpr std::size_t kGrid = 8;        // of the first look, each way
constexpr std::size_t kWindowless = 2;  // segments
constexpr double kForEver = std::numeric_limits<double>::infinity();

/// Movable units in the order in which a forward pass needs them.
std::vector<std::size_t> movable_in_order(const PlacementProblem& problem) {
  std::vector<std::size_t> order;
  std::vector<bool> seen(problem.units.size());
  const auto take = [&](std::size_t unit) {
    if (!seen[unit] && problem.units[unit].is_movable) {
      order.push_back(unit);
    }
    seen[unit] = true;
  };
  for (const PlacementSegment& segment : problem.segments) {
    std::ranges::for_each(segment.units, take);
  }
  for (std::size_t unit = 0; unit < problem.units.size(); ++unit) {
    take(unit);  // those that no segment uses
  }
  return order;
}

class Solver {
 public:
  explicit Solver(const PlacementProblem& problem)
      : p_(problem), order_(movable_in_order(problem)), windowless_(windowless()) {}

  PlacementChoice run() {
    const std::vector<StatePlacement> host(p_.units.size(), StatePlacement::kHost);
    PlacementChoice choice{.placements = host, .host_step_s = predict_step_s(p_, host)};
    choice.step_s = choice.host_step_s;
    if (order_.size() <= kFewUnits) {
      look_at_all(host);
    } else {
      look_at_numbers();
    }
    if (!best_.empty()) {  // and with the first units where they belong
      Placements placements = best_;
      for (std::size_t i = 0; i < windowless_; ++i) {
        placements[order_[i]] = StatePlacement::kDevice;
      }
      look(std::move(placements));
      look(windowless_, 0, StreamOrder::kSpread);
    }
    choice.predictions = seen_.size() + 1;
    choose(choice);
    return choice;
  }

 private:
  struct Seen {
    double step_s;
    double device_bytes;
    double streamed_bytes;
  };
  using Placements = std::vector<StatePlacement>;

  /// How many of the first units have no window and fit onto the device together.
  [[nodiscard]] std::size_t windowless() const {
    std::size_t count = 0;
    Placements placements(p_.units.size(), StatePlacement::kHost);
    for (std::size_t s = 0; s < std::min(kWindowless, p_.segments.size()); ++s) {
      for (const std::size_t unit : p_.segments[s].units) {
        if (count < order_.size() && order_[count] == unit) {
          placements[unit] = StatePlacement::kDevice;
          if (p_.device_bytes_of(placements) > p_.device_bytes) {
            return count;
          }
          ++count;
        }
      }
    }
    return count;
  }

  /// Seconds of these placements; what does not fit takes for ever.
  double look(Placements placements) {
    if (const auto known = seen_.find(placements); known != seen_.end()) {
      return known->second.step_s;
    }
    if (!p_.fits(placements)) {
      return kForEver;
    }
    double streamed = 0;
    for (std::size_t unit = 0; unit < placements.size(); ++unit) {
      streamed += placements[unit] == StatePlacement::kStreamed ? p_.units[unit].state_in : 0;
    }
    const double step_s = predict_step_s(p_, placements);
    if (step_s < best_s_) {
      best_s_ = step_s;
      best_ = placements;
    }
    const double device = p_.device_bytes_of(placements);
    seen_.emplace(std::move(placements), Seen{step_s, device, streamed});
    return step_s;
  }

  /// Every placement there is.
  void look_at_all(Placements placements) {
    for (;;) {
      look(placements);
      std::size_t i = 0;
      while (i < order_.size() && placements[order_[i]] == StatePlacement::kStreamed) {
        placements[order_[i++]] = StatePlacement::kHost;
      }
      if (i == order_.size()) {
        return;
      }
      StatePlacement& next = placements[order_[i]];
      next = next == StatePlacement::kHost ? StatePlacement::kDevice : StatePlacement::kStreamed;
    }
  }

  double look(std::size_t d, std::size_t s, StreamOrder order) {
    return look(placements_by_count(p_, d, s, order));
  }

  /// Numbers of units on a grid, then nearer and nearer to the best ones.
  void look_at_numbers() {
    const std::size_t units = order_.size();
    const std::size_t stride = (units + kGrid - 1) / kGrid;
    for (const StreamOrder order :
         {StreamOrder::kSpread, StreamOrder::kFirst, StreamOrder::kLast}) {
      std::size_t best_d = 0;
      std::size_t best_s = 0;
      double best = kForEver;
      const auto try_numbers = [&](std::size_t d, std::size_t s) {
        if (const double step_s = d + s <= units ? look(d, s, order) : kForEver; step_s < best) {
          best = step_s;
          best_d = d;
          best_s = s;
        }
      };
      for (std::size_t d = 0; d <= units; d += stride) {
        for (std::size_t s = 0; d + s <= units; s += stride) {
          try_numbers(d, s);
        }
        try_numbers(d, units - d);
      }
      for (std::size_t step = std::max<std::size_t>(1, stride / 2); step > 0; step /= 2) {
        for (double before = kForEver; best < before;) {
          before = best;
          const std::size_t d = best_d;
          const std::size_t s = best_s;
          for (const std::size_t near_d : {d, d + step, d - std::min(step, d)}) {
            for (const std::size_t near_s : {s, s + step, s - std::min(step, s)}) {
              try_numbers(near_d, near_s);
            }
          }
        }
      }
    }
  }

  struct Candidate {
    const Placements* placements;
    const Seen* seen;
    double slower_pool_step_s;
  };

  void choose(PlacementChoice& choice) const {
    const std::vector<Candidate> candidates = as_good_as_the_best();
    choice.predictions += candidates.size();
    choice.fits = !candidates.empty();
    if (!choice.fits) {
      return;
    }
    const double limit_s =
        kAsGood *
        std::ranges::min(candidates, {}, &Candidate::slower_pool_step_s).slower_pool_step_s;
    const Candidate chosen = std::ranges::min(candidates, {}, [&](const Candidate& one) {
      return std::tuple(one.slower_pool_step_s > limit_s, !keeps_windowless(*one.placements),
                        one.seen->device_bytes, one.seen->streamed_bytes, one.seen->step_s);
    });
    choice.placements = *chosen.placements;
    choice.step_s = chosen.seen->step_s;
    choice.device_bytes = chosen.seen->device_bytes;
  }

  [[nodiscard]] std::vector<Candidate> as_good_as_the_best() const {
    PlacementProblem slower = p_;
    slower.speeds.host_update *= kSlowerPool;
    slower.speeds.host_update_speculative *= kSlowerPool;
    std::vector<Candidate> candidates;
    for (const auto& [placements, seen] : seen_) {
      if (seen.step_s <= kAsGood * best_s_) {
        candidates.push_back({&placements, &seen, predict_step_s(slower, placements)});
      }
    }
    return candidates;
  }

  [[nodiscard]] bool keeps_windowless(const Placements& placements) const {
    return std::all_of(
        order_.begin(), order_.begin() + static_cast<long>(windowless_),
        [&](std::size_t unit) { return placements[unit] == StatePlacement::kDevice; });
  }

  const PlacementProblem& p_;
  std::vector<std::size_t> order_;
  std::size_t windowless_ = 0;
  std::map<Placements, Seen> seen_;
  Placements best_;
  double best_s_ = kForEver;
};

}  // namespace

std::vector<StatePlacement> placements_by_count(const PlacementProblem& problem, std::size_t device,
                                                std::size_t streamed, StreamOrder order) {
  const std::vector<std::size_t> movable = movable_in_order(problem);
  std::vector<StatePlacement> placements(problem.units.size(), StatePlacement::kHost);
  // Memory for streaming is set aside first.
  double room = problem.device_bytes - (streamed > 0 ? problem.device_buffer_bytes : 0);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < movable.size(); ++i) {
    const std::size_t unit = movable[i];
    if (i < device && problem.units[unit].on_device <= room) {
      room -= problem.units[unit].on_device;
      placements[unit] = StatePlacement::kDevice;
    } else {
      others.push_back(unit);
    }
  }
  const std::size_t count = std::min(streamed, others.size());
  for (std::size_t i = 0; i < others.size(); ++i) {
    const bool streams = order == StreamOrder::kFirst ? i < count
                         : order == StreamOrder::kLast
                             ? i >= others.size() - count
                             : (i + 1) * count / others.size() > i * count / others.size();
    if (streams) {
      placements[others[i]] = StatePlacement::kStreamed;
    }
  }
  return placements;
}

PlacementChoice choose_placements(const PlacementProblem& problem) { return Solver(problem).run(); }

}  // namespace tandem
