#include "tests/sim/training_run.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/report.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kEndsWithin = milliseconds(500);  // virtual time, after a fault

std::string g_report;
void keep_report(std::string_view line) noexcept { g_report = line; }

bool is_harmless(Fault fault) {
  return fault == Fault::kNone || fault == Fault::kSlow || fault == Fault::kClogs ||
         fault == Fault::kDiskFull || fault == Fault::kPowerCut;
}

/// A part of the error that the victim of a fault ends with.
const char* word_of(const Strike& strike) {
  switch (strike.fault) {
    case Fault::kFails:
      return text_of(strike.operation).error;
    case Fault::kDeviceLost:
      return "the device was lost";
    case Fault::kIoError:
    case Fault::kNvmeError:
      return "Input/output error";
    case Fault::kStop:
      return "";
    default:
      return "never";
  }
}

/// Short and interrupted transfers always; errors as the strike says.
SimFiles::Faults faults_of(const Strike& strike, bool is_victim, Fault some, Operation one) {
  const bool fails = is_victim && strike.fault == some;
  const bool fails_once = is_victim && strike.fault == Fault::kFails && strike.operation == one;
  return {.short_transfer = 0.3,
          .interrupted = 0.1,
          .io_error = fails ? strike.error_chance : 0,
          .error_at = fails_once ? strike.at : UINT64_MAX};
}

}  // namespace

std::string Strike::text() const {
  constexpr const char* kNames[] = {
      "nothing",         "a slow rank",    "clogged links",     "death",
      "a stop",          "a failure",      "the device's loss", "a full disk",
      "errors of files", "errors of NVMe", "a power cut"};
  return fmt::format("{} at {} {} of rank {}", kNames[static_cast<std::size_t>(fault)],
                     text_of(operation).name, at, victim);
}

bool trains_on_disk(const Plan& plan) {
  const EngineOptions& engine = plan.engine;
  return !plan.on_device &&
         (engine.nvme.weights_in_memory || engine.activation_offload.value_or(0) > 0 ||
          std::ranges::find(engine.placements, StatePlacement::kNvme) != engine.placements.end());
}

TrainingRun::TrainingRun(std::uint64_t seed, const Plan& plan, const Reference& reference,
                         Strike strike, std::vector<SimDisk>& disks, std::uint64_t start)
    : plan_(plan),
      reference_(reference),
      run_("training", seed, plan.ranks),
      strike_(strike),
      links_(run_.world, {}),
      disks_(disks),
      meeting_{.start = start} {
  const std::uint32_t per_host = plan.ranks / plan.hosts;
  for (std::uint32_t host = 0; host < plan.hosts; ++host) {
    hosts_.push_back(std::make_unique<SimHost>(run_.world, host * per_host, per_host));
  }
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    const bool is_victim = rank == strike.victim;
    ranks_.push_back(std::make_unique<TrainingRank>(
        run_, plan, reference, rank, links_, *hosts_[rank / per_host], disks[plan.disk_of(rank)],
        DiskFaults{
            .of_files = faults_of(strike, is_victim, Fault::kIoError, Operation::kFileCall),
            .of_nvme = faults_of(strike, is_victim, Fault::kNvmeError, Operation::kNvmeCall)},
        meeting_));
  }
  plan_strike();
  for (const auto& rank : ranks_) {
    rank->start();
  }
}

TrainingRun::~TrainingRun() {
  g_report.clear();
  const ReportHook before = set_report_hook(&keep_report);
  ranks_.clear();
  set_report_hook(before);
  run_.require(g_report.empty(), "the runtime reports: {}", g_report);
}

void TrainingRun::plan_strike() {
  TrainingRank& victim = *ranks_[strike_.victim];
  SimWorld& world = run_.world;
  switch (strike_.fault) {
    case Fault::kSlow:
      world.slow_down(strike_.victim, strike_.factor);
      break;
    case Fault::kClogs:
      for (int i = 0; i < 6; ++i) {
        world.after(microseconds(run_.random.between(10, 4000)), 0, [this] {
          const auto from = static_cast<std::uint32_t>(run_.random.below(plan_.ranks));
          links_.clog(from, (from + 1) % plan_.ranks, microseconds(run_.random.between(100, 3000)));
          run_.world.pause(from, microseconds(run_.random.between(10, 1000)));
        });
      }
      break;
    case Fault::kDeath:
      world.before_turn(strike_.victim, strike_.at,
                        [this] { strike([&] { run_.world.kill(strike_.victim); }); });
      break;
    case Fault::kStop: {
      const auto stop = [this, &victim] {
        strike([&] { victim.training->scope().request_stop(); });
      };
      if (strike_.operation == Operation::kTurn) {
        world.before_turn(strike_.victim, strike_.at, stop);
        break;
      }
      run_.each_step = [this, &victim, stop] {
        if (struck_at_ == TimePoint::max() && victim.count_of(strike_.operation) > strike_.at) {
          stop();
        }
      };
      break;
    }
    case Fault::kFails:
      victim.fail(strike_.operation, strike_.at);
      break;
    case Fault::kDeviceLost:
      world.after(strike_.when, strike_.victim,
                  [this, &victim] { strike([&] { victim.device()->lose(); }); });
      break;
    case Fault::kDiskFull:
      disks_[plan_.disk_of(strike_.victim)].set_capacity(
          disks_[plan_.disk_of(strike_.victim)].used_bytes() + strike_.capacity);
      break;
    case Fault::kPowerCut:
      world.before_turn(strike_.victim, strike_.at, [this] { cut_power(); });
      break;
    case Fault::kIoError:
    case Fault::kNvmeError:
    case Fault::kNone:
      break;
  }
}

void TrainingRun::cut_power() {
  Random random = run_.random.fork("power cut");
  found_.emplace().step = meeting_.committed_step;
  for (const SimDisk& disk : disks_) {
    const double share = random.uniform();
    SimDisk& found = found_->disks.emplace_back(
        disk.after_power_cut([&](const SimDisk::Piece&) { return random.chance(share); }));
    found.set_capacity(UINT64_MAX);
  }
}

FoundDisks TrainingRun::after_power_cut() {
  if (!found_) {
    cut_power();
  }
  return std::move(*found_);
}

template <class Act>
void TrainingRun::strike(Act act) {
  if (!all_ended()) {
    struck_at_ = run_.world.now();
    act();
  }
}

OperationCounts TrainingRun::operations_of(std::uint32_t rank) const {
  OperationCounts counts{};
  for (std::size_t i = 0; i < kOperations; ++i) {
    counts[i] = ranks_[rank]->count_of(static_cast<Operation>(i));
  }
  return counts;
}

void TrainingRun::to_end(std::uint64_t found_step) {
  run_.until("every rank ends", [&] { return all_ended(); });
  check_end();
  for (const auto& rank : ranks_) {
    run_.require(
        !rank->failure().empty() || !run_.world.alive(rank->rank) || rank->first_step >= found_step,
        "step {} was committed, and the start is at {}", found_step, rank->first_step);
  }
  bury_the_dead();
  check_quiet();
}

bool TrainingRun::all_ended() const {
  for (const auto& rank : ranks_) {
    if (run_.world.alive(rank->rank) && !rank->ended()) {
      return false;
    }
  }
  return true;
}

std::string TrainingRun::first_failure() const {
  for (const auto& rank : ranks_) {
    if (!rank->failure().empty()) {
      return rank->failure();
    }
  }
  return "";
}

void TrainingRun::check_result() {
  for (const auto& rank : ranks_) {
    run_.require(rank->steps_done == plan_.steps, "rank {} made {} steps", rank->rank,
                 rank->steps_done);
    check_state(*rank, plan_.steps);
  }
  // State is read from NVMe to be saved; a stop may come when all but a save is done.
  const bool saves_may_fail = strike_.fault == Fault::kDiskFull ||
                              strike_.fault == Fault::kIoError ||
                              strike_.fault == Fault::kNvmeError || strike_.fault == Fault::kStop ||
                              strike_.fault == Fault::kFails;
  run_.require(saves_may_fail || meeting_.save_error.empty(),
               "a save failed without a fault that it could meet ({}): {}", strike_.text(),
               meeting_.save_error);
  run_.require(links_.frames_under_way() == 0, "{} frames were sent and not received",
               links_.frames_under_way());
}

void TrainingRun::check_state(const TrainingRank& rank, std::uint64_t steps) {
  for (std::size_t unit = 0; unit < plan_.units(); ++unit) {
    const std::size_t begin = rank.layout.slice_begin(unit);
    for (std::size_t array = 0; array < 3; ++array) {
      const std::vector<float>& whole = reference_.after[steps][unit][array];
      const std::vector<float>& mine = rank.end_state[unit][array];
      const std::span<const float> rest = std::span(whole).subspan(std::min(begin, whole.size()));
      const std::size_t held = std::min(mine.size(), rest.size());
      run_.require(std::ranges::equal(std::span(mine).first(held), rest.first(held)),
                   "rank {}, unit {}, array {}: the state differs from the reference's after {} "
                   "steps, after a start at step {} ({})",
                   rank.rank, unit, array, steps, rank.first_step, strike_.text());
    }
  }
}

/// A failure is never lost: a rank ends with it, or the save that it broke is known to have failed.
/// A search for older checkpoints leaves those alone that it cannot read.
void TrainingRun::check_noticed(bool any_failed) {
  TrainingRank& victim = *ranks_[strike_.victim];
  if (strike_.fault != Fault::kFails || strike_.operation == Operation::kFileCall) {
    return;
  }
  const bool struck = strike_.operation == Operation::kNvmeCall
                          ? victim.nvme_files->failed_calls() > 0  // not if it was interrupted
                          : victim.count_of(strike_.operation) > strike_.at;
  run_.require(!struck || any_failed || !meeting_.save_error.empty(), "no rank noticed {}",
               strike_.text());
}

void TrainingRun::check_same_order() {
  const auto agree = [](const std::vector<std::size_t>& a, const std::vector<std::size_t>& b) {
    const std::size_t both = std::min(a.size(), b.size());
    return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(both), b.begin());
  };
  for (const auto& rank : ranks_) {
    run_.require(agree(rank->recorded->gathers, ranks_[0]->recorded->gathers) &&
                     agree(rank->recorded->reductions, ranks_[0]->recorded->reductions),
                 "ranks 0 and {} issue collectives in different orders", rank->rank);
  }
}

void TrainingRun::bury_the_dead() {
  for (const auto& rank : ranks_) {
    if (!run_.world.alive(rank->rank)) {
      rank->files->set_faults({.io_error = 1});  // what it has not asked for does not happen
      links_.cut(rank->rank);
      hosts_[rank->rank / (plan_.ranks / plan_.hosts)]->cut(rank->rank);
      run_.world.bury(rank->rank);
    }
  }
  run_.until("the dead are buried", [&] { return all_ended(); });
}

void TrainingRun::check_quiet() {
  run_.until("the loops are quiet", [&] {
    for (std::uint32_t rank = 0; rank < plan_.ranks; ++rank) {
      if (run_.world.loop(rank).has_ready_ops()) {
        return false;
      }
    }
    return true;
  });
  for (const auto& rank : ranks_) {
    run_.require(rank->is_quiet(), "rank {} ends with work under way ({})", rank->rank,
                 strike_.text());
  }
  run_.require(links_.operations_under_way() == 0, "{} sends and receives outlive their ranks ({})",
               links_.operations_under_way(), strike_.text());
}

void TrainingRun::check_end() {
  run_.require(first_failure().empty() || !is_harmless(strike_.fault),
               "a rank failed though nothing was at fault: {}", first_failure());
  bool any = false;
  TimePoint first = TimePoint::max();
  TimePoint last;
  for (const auto& rank : ranks_) {
    if (!run_.world.alive(rank->rank)) {
      any = true;
      continue;
    }
    if (const std::string what = rank->failure(); !what.empty()) {
      any = true;
      check_blame(*rank, what);
      if (!rank->end_state.empty()) {
        check_state(*rank, rank->steps_done);
      }
    }
    first = std::min(first, rank->ended_at);
    last = std::max(last, rank->ended_at);
  }
  if (any) {
    const TimePoint since = struck_at_ != TimePoint::max() ? struck_at_ : first;
    run_.require(last < since + kEndsWithin, "a rank ended {} ns after the fault",
                 (last - since).count());
  } else {
    check_result();
  }
  check_noticed(any);
  check_same_order();
}

void TrainingRun::check_blame(const TrainingRank& rank, const std::string& what) {
  run_.require(rank.failed_rank() == strike_.victim,
               "rank {} blames rank {} instead of {} ({}): {}", rank.rank, rank.failed_rank(),
               strike_.victim, strike_.text(), what);
  if (rank.rank == strike_.victim) {
    const char* const word = word_of(strike_);
    run_.require(what.find(word) != std::string::npos, "rank {} says \"{}\", not \"{}\"", rank.rank,
                 what, word);
  }
}

}  // namespace tandem::sim_test
