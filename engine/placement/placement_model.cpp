#include "engine/placement/placement_model.hpp"

#include <algorithm>
#include <array>

#include "engine/placement/shared_resources.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr int kSteps = 4;    // played
constexpr int kCounted = 2;  // of these, the last ones

/// A visit of a step, and what it has to wait for.
struct Step {
  std::size_t segment = 0;
  bool is_backward = false;
  std::size_t micro_step = 0;
};

enum ActivityKind : std::uint8_t {
  kBoundariesOut,
  kBoundariesBack,
  kGathers,
  kReductions,
  kHostUpdates,
  kFileUpdates,
  kStreams,
  kDeviceUpdates,
  kActivityKinds
};

/// The first slice of an update has come in before the runner is busy, and the last one goes out
/// when it is not any more.
struct Tail {
  std::size_t unit = 0;
  double left_s = 0;
};

class Play {
 public:
  Play(const PlacementProblem& problem, std::span<const StatePlacement> placements)
      : p_(problem),
        placements_(placements),
        units_(problem.units.size()),
        progress_(problem.units.size(), 1) {
    make_visits();
    find_uses();
  }

  double run() {
    double before = 0;
    for (int step = 0; step < kSteps; ++step) {
      if (step == kSteps - kCounted) {
        before = now_;
      }
      play_step();
    }
    return (now_ - before) / kCounted;
  }

 private:
  struct Unit {
    bool current = true;       // its weights are those that the next visit needs
    bool reduced = false;      // its gradient is, in this step
    bool queued = false;       // its update
    bool speculative = false;  // its update began before the verdict
    bool updated = false;      // and ended before it
    std::size_t first_visit = SIZE_MAX;
    std::size_t last_visit = 0;  // its gradient is complete after it, in each micro-step's sweep
  };
  struct Gather {
    std::size_t unit;
    std::size_t visit;
  };

  void make_visits() {
    const std::size_t segments = p_.segments.size();
    for (std::size_t m = 0; m < static_cast<std::size_t>(p_.micro_steps); ++m) {
      for (std::size_t s = 0; s < segments; ++s) {
        visits_.push_back({s, false, m});
      }
      for (std::size_t s = segments; s-- > 0;) {
        visits_.push_back({s, true, m});
      }
    }
  }

  /// Gathers in the plan's order, without those that find the unit in a slot; and where gradients
  /// are complete.
  void find_uses() {
    std::vector<std::size_t> held;  // units in slots, the latest last
    gathers_of_.resize(visits_.size());
    for (std::size_t v = 0; v < visits_.size(); ++v) {
      for (const std::size_t unit : p_.segments[visits_[v].segment].units) {
        Unit& state = units_[unit];
        state.first_visit = std::min(state.first_visit, v);
        state.last_visit = v;
        const bool is_first = state.first_visit == v;
        const auto found = std::ranges::find(held, unit);
        const bool resident = p_.units[unit].is_replicated ? !is_first : found != held.end();
        if (!resident) {
          gathers_of_[v].push_back(gathers_.size());
          gathers_.push_back({unit, v});
        }
        if (found != held.end()) {
          held.erase(found);
        } else if (held.size() >= std::max<std::size_t>(1, p_.gather_slots)) {
          held.erase(held.begin());
        }
        held.push_back(unit);
      }
    }
  }

  void begin_step() {
    visit_ = 0;
    next_gather_ = 0;
    gathered_ = 0;
    reductions_.clear();
    next_reduction_ = 0;
    compute_left_ = -1;
    verdict_given_ = false;
    for (Unit& unit : units_) {
      unit.reduced = false;
      unit.updated = false;
    }
  }

  /// One step of compute; updates go on into the next.
  void play_step() {
    begin_step();
    while (visit_ < visits_.size() || next_reduction_ < reductions_.size()) {
      start_what_can();
      advance();
    }
    give_verdict();
    while (p_.overlap < Overlap::kOffload && updates_ > 0) {
      start_what_can();
      advance();
    }
  }

  /// From here on the next forward needs new weights.
  void give_verdict() {
    verdict_given_ = true;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      Unit& unit = units_[i];
      if (!unit.reduced || unit.updated) {
        continue;
      }
      unit.current = false;
      if (!unit.queued) {
        queue_update(i);
      }
    }
  }

  void queue_update(std::size_t unit) {
    units_[unit].queued = true;
    units_[unit].speculative = false;
    ++updates_;
    const StatePlacement placement = placements_[unit];
    const ActivityKind kind = placement == StatePlacement::kNvme     ? kFileUpdates
                              : !updates_on_device(placement)        ? kHostUpdates
                              : placement == StatePlacement::kDevice ? kDeviceUpdates
                                                                     : kStreams;
    queues_[kind].push_back(unit);
    progress_[unit] = 1;
  }

  void start_what_can() {
    start_compute();
    start_boundary(kBoundariesOut, kToHost, p_.speeds.to_host);
    start_boundary(kBoundariesBack, kToDevice, p_.speeds.to_device);
    start_gather();
    start_reduction();
    for (const ActivityKind kind : {kHostUpdates, kFileUpdates, kStreams, kDeviceUpdates}) {
      choose_update(kind);
    }
  }

  void start_compute() {
    const bool reduces = next_reduction_ < reductions_.size();
    if (compute_left_ >= 0 || visit_ == visits_.size() ||
        (p_.overlap == Overlap::kOff && reduces)) {
      return;
    }
    const std::vector<std::size_t>& needed = gathers_of_[visit_];
    if (!needed.empty() && needed.back() >= gathered_) {
      return;
    }
    for (const std::size_t unit : p_.segments[visits_[visit_].segment].units) {
      if (!units_[unit].current) {
        return;
      }
    }
    if (waits_for_boundary(visits_[visit_])) {
      return;
    }
    const PlacementSegment& segment = p_.segments[visits_[visit_].segment];
    compute_left_ = visits_[visit_].is_backward ? segment.backward_s : segment.forward_s;
  }

  /// As TrainStep: in forward a boundary is gone two visits after the one that made it, in backward
  /// it is asked for one visit ahead; at --overlap off nothing runs beside a copy.
  [[nodiscard]] bool waits_for_boundary(const Step& visit) {
    const std::size_t ahead = p_.overlap == Overlap::kOff ? 0 : 1;
    if (!visit.is_backward) {
      return visit.segment >= 2 * ahead && away(kBoundariesOut, visit.segment - 2 * ahead);
    }
    bring(visit.segment);
    if (away(kBoundariesBack, visit.segment)) {
      return true;
    }
    if (visit.segment >= ahead) {
      bring(visit.segment - ahead);
    }
    return false;
  }
  /// A copy of that boundary is still to be done.
  [[nodiscard]] bool away(ActivityKind way, std::size_t boundary) const {
    return std::ranges::find(queues_[way], boundary) != queues_[way].end();
  }
  void bring(std::size_t boundary) {
    if (p_.segments[boundary].boundary > 0 && next_back_ > boundary) {
      next_back_ = boundary;
      queues_[kBoundariesBack].push_back(boundary);
    }
  }

  /// The first that is to be copied that way.
  void start_boundary(ActivityKind way, Resource link, double speed) {
    if (activities_[way].runs || queues_[way].empty()) {
      return;
    }
    Demand demand{};
    demand[link] = p_.segments[queues_[way].front()].boundary / speed;
    activities_[way] = {.demand = demand, .left = 1, .unit = queues_[way].front(), .runs = true};
  }

  void start_gather() {
    Activity& gather = activities_[kGathers];
    if (gather.runs || next_gather_ == gathers_.size()) {
      return;
    }
    const auto& [unit, visit] = gathers_[next_gather_];
    const bool runs_ahead = p_.overlap >= Overlap::kComm;
    const std::size_t ahead = runs_ahead ? std::max<std::size_t>(1, p_.gather_slots) : 1;
    const bool has_slot = p_.units[unit].is_replicated || visit < visit_ + ahead;
    if (!units_[unit].current || !has_slot || (!runs_ahead && visit != visit_)) {
      return;
    }
    const PlacementUnit& sizes = p_.units[unit];
    Demand demand{};
    if (!updates_on_device(placements_[unit])) {
      demand[kToDevice] = sizes.weights / p_.speeds.to_device;
    } else if (!p_.is_alone) {
      demand[kToHost] = sizes.weights / p_.speeds.to_host;
      demand[kToDevice] = sizes.weights / p_.speeds.to_device;
    } else if (!sizes.is_replicated) {
      demand[kMemory] = 2 * sizes.weights / p_.speeds.device_memory;
    }
    gather = {.demand = demand, .left = 1, .unit = unit, .runs = true};
  }

  void start_reduction() {
    Activity& reduction = activities_[kReductions];
    if (reduction.runs || next_reduction_ == reductions_.size()) {
      return;
    }
    const std::size_t unit = reductions_[next_reduction_].unit;
    const PlacementUnit& sizes = p_.units[unit];
    Demand demand{};
    if (!updates_on_device(placements_[unit]) || !p_.is_alone) {
      demand[kToHost] = sizes.gradient / p_.speeds.to_host;
    } else {
      demand[kMemory] = (sizes.gradient + sizes.accumulator) / p_.speeds.device_memory;
    }
    reduction = {.demand = demand, .left = 1, .unit = unit, .runs = true};
  }

  [[nodiscard]] bool has_shadow(std::size_t unit) const {
    return placements_[unit] == StatePlacement::kNvme ? p_.units[unit].has_shadow_on_nvme
                                                      : p_.units[unit].has_shadow;
  }

  /// Whether an update works on this step's gradient before its verdict.
  [[nodiscard]] bool is_speculative(std::size_t unit) const {
    return units_[unit].reduced && !verdict_given_;
  }

  /// The queued unit that is needed first; another one's progress is kept. An update that began
  /// ahead of the verdict goes on until that, as CpuOptimizer has it.
  void choose_update(ActivityKind kind) {
    Activity& update = activities_[kind];
    if (update.runs) {
      if (units_[update.unit].speculative && is_speculative(update.unit)) {
        return;
      }
      progress_[update.unit] = update.left;
    }
    update.runs = false;
    std::size_t best = SIZE_MAX;
    for (const std::size_t unit : queues_[kind]) {
      if (best == SIZE_MAX || units_[unit].first_visit < units_[best].first_visit) {
        best = unit;
      }
    }
    if (best == SIZE_MAX) {
      return;
    }
    const PlacementUnit& sizes = p_.units[best];
    units_[best].speculative = units_[best].speculative || is_speculative(best);
    Demand demand{};
    if (kind == kFileUpdates) {
      demand[kPool] = sizes.update / p_.speeds.host_update;
      demand[kDisk] = sizes.state_in / p_.speeds.disk;
    } else if (kind == kHostUpdates) {
      const bool slower = units_[best].speculative && p_.speeds.host_update_speculative > 0;
      demand[kPool] =
          sizes.update / (slower ? p_.speeds.host_update_speculative : p_.speeds.host_update);
    } else {
      demand[kMemory] = sizes.update / p_.speeds.device_memory;
      const double gradient = p_.is_alone ? 0 : sizes.accumulator;
      const double state = kind == kStreams ? sizes.state_in : 0;
      demand[kToDevice] = (state + gradient) / p_.speeds.to_device;
      demand[kToHost] = state / p_.speeds.to_host;
    }
    update = {.demand = demand, .left = progress_[best], .unit = best, .runs = true};
  }

  /// To the next end of anything.
  void advance() {
    double passes =
        std::min(activities_.seconds_to_next_end(), compute_left_ >= 0 ? compute_left_ : kNever);
    for (const Tail& tail : tails_) {
      passes = std::min(passes, tail.left_s);
    }
    TANDEM_CHECK(passes < kNever, "something always goes on in a step");
    now_ += passes;
    for (Tail& tail : tails_) {
      tail.left_s -= passes;
      if (tail.left_s <= 0) {
        update_ended(tail.unit);
      }
    }
    std::erase_if(tails_, [](const Tail& tail) { return tail.left_s <= 0; });
    activities_.pass(passes, [this](std::size_t kind, std::size_t unit) {
      ended(static_cast<ActivityKind>(kind), unit);
    });
    if (compute_left_ >= 0) {
      compute_left_ -= passes;
      if (compute_left_ <= 0) {
        visit_ended();
      }
    }
  }

  void ended(ActivityKind kind, std::size_t unit) {
    switch (kind) {
      case kBoundariesOut:
      case kBoundariesBack:
        queues_[kind].erase(queues_[kind].begin());
        return;
      case kGathers:
        ++next_gather_;
        ++gathered_;
        return;
      case kReductions:
        if (reductions_[next_reduction_++].is_last) {
          units_[unit].reduced = true;
          if (p_.overlap == Overlap::kFull && has_shadow(unit)) {
            queue_update(unit);
          }
        }
        return;
      default:
        std::erase(queues_[kind], unit);
        if (const double tail_s = tail_of(kind, p_.units[unit]); tail_s > 0) {
          tails_.push_back({unit, tail_s});
        } else {
          update_ended(unit);
        }
    }
  }

  void update_ended(std::size_t unit) {
    units_[unit].queued = false;
    units_[unit].updated = units_[unit].current;
    units_[unit].current = true;
    --updates_;
  }

  /// The time of one slice in all stages but the slowest, which is that of all slices together.
  [[nodiscard]] double tail_of(ActivityKind kind, const PlacementUnit& unit) const {
    if (kind != kFileUpdates && kind != kStreams) {
      return 0;
    }
    const bool is_file = kind == kFileUpdates;
    const double slice = is_file ? unit.nvme_slice : unit.streamed_slice;
    const double state = unit.state_in * slice;
    const double in_s = state / (is_file ? p_.speeds.disk : p_.speeds.to_device);
    const double out_s = state / (is_file ? p_.speeds.disk : p_.speeds.to_host);
    const double update_s =
        unit.update * slice / (is_file ? p_.speeds.host_update : p_.speeds.device_memory);
    return in_s + update_s + out_s - std::max({in_s, update_s, out_s});
  }

  void visit_ended() {
    const Step& visit = visits_[visit_];
    if (visit.is_backward) {
      const bool last_micro_step = visit.micro_step + 1 == static_cast<std::size_t>(p_.micro_steps);
      for (const std::size_t unit : p_.segments[visit.segment].units) {
        const std::size_t until_last = units_[unit].last_visit;
        const bool completes =
            until_last % (2 * p_.segments.size()) == visit_ % (2 * p_.segments.size());
        if (p_.units[unit].is_movable && completes) {
          reductions_.push_back({unit, last_micro_step});
        }
      }
    } else if (const std::size_t made = visit.segment + 1;
               made < p_.segments.size() && p_.segments[made].boundary > 0) {
      queues_[kBoundariesOut].push_back(made);
      next_back_ = made + 1;
    }
    ++visit_;
    compute_left_ = -1;
  }

  struct Reduction {
    std::size_t unit;
    bool is_last;
  };

  const PlacementProblem& p_;
  std::span<const StatePlacement> placements_;
  std::vector<Step> visits_;
  std::vector<Gather> gathers_;
  std::vector<std::vector<std::size_t>> gathers_of_;  // [visit]
  std::vector<Unit> units_;

  double now_ = 0;
  std::size_t visit_ = 0;
  bool verdict_given_ = false;
  double compute_left_ = -1;  // of the visit that runs; below 0: none
  std::size_t next_gather_ = 0;
  std::size_t gathered_ = 0;
  std::vector<Reduction> reductions_;
  std::size_t next_reduction_ = 0;
  SharedResources<kActivityKinds> activities_;
  std::array<std::vector<std::size_t>, kActivityKinds> queues_;
  std::vector<double> progress_;
  std::vector<Tail> tails_;
  std::size_t updates_ = 0;    // queued
  std::size_t next_back_ = 0;  // of this micro-step's boundaries, those from here on are asked for
};

}  // namespace

double PlacementProblem::device_bytes_of(std::span<const StatePlacement> placements) const {
  double bytes = 0;
  bool streams = false;
  for (std::size_t unit = 0; unit < placements.size(); ++unit) {
    bytes += placements[unit] == StatePlacement::kDevice     ? units[unit].on_device
             : placements[unit] == StatePlacement::kStreamed ? units[unit].when_streamed
                                                             : 0;
    streams = streams || placements[unit] == StatePlacement::kStreamed;
  }
  return bytes + (streams ? device_buffer_bytes : 0);
}

double PlacementProblem::host_bytes_of(std::span<const StatePlacement> placements) const {
  double bytes = std::ranges::any_of(placements, &updates_on_device) ? host_buffer_bytes : 0;
  for (std::size_t unit = 0; unit < placements.size(); ++unit) {
    bytes += placements[unit] == StatePlacement::kHost       ? units[unit].on_host
             : placements[unit] == StatePlacement::kStreamed ? units[unit].optimizer
             : placements[unit] == StatePlacement::kNvme
                 ? units[unit].on_host - units[unit].optimizer
                 : 0;
  }
  return bytes;
}

double predict_step_s(const PlacementProblem& problem, std::span<const StatePlacement> placements) {
  TANDEM_CHECK_EQ(placements.size(), problem.units.size(), "every unit has a placement");
  return Play(problem, placements).run();
}

}  // namespace tandem
