// N ranks train with the step that ships, whatever its settings, and save beside it, with at most
// one fault: without one every visit sees the weights of the reference, and the state at the end is
// its own, bit for bit; with one every surviving rank ends in time and names who or what was at
// fault. Then the power goes, and whatever the disk has kept, a start from it reaches the
// reference's state. A save that fails costs the training nothing.
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "runtime/detail/mailbox/ask_table.hpp"
#include "tests/sim/training_rank.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kEndsWithin = milliseconds(500);  // virtual time, after a fault

enum class Fault {
  kNone,
  kSlow,
  kClogs,
  kDeath,
  kVisit,
  kKernel,
  kCopy,
  kDeviceLost,
  kDiskFull,
  kIoError
};

/// Draws the fault; where there is no device, a visit fails instead of it.
Fault draw_fault(const Plan& plan, Random& random) {
  if (random.chance(0.4)) {
    return Fault::kNone;
  }
  const auto fault = static_cast<Fault>(1 + random.below(9));
  const bool of_device =
      fault == Fault::kKernel || fault == Fault::kCopy || fault == Fault::kDeviceLost;
  return of_device && !plan.on_device ? Fault::kVisit : fault;
}

bool trains_on_disk(const Plan& plan) {
  const EngineOptions& engine = plan.engine;
  return !plan.on_device &&
         (engine.nvme.weights_in_memory || engine.activation_offload.value_or(0) > 0 ||
          std::ranges::find(engine.placements, StatePlacement::kNvme) != engine.placements.end());
}

/// From a start of the program to its end.
struct Training {
  Training(std::uint64_t seed, const Plan& plan_in, const Reference& reference_in, Fault fault_in,
           SimDisk& disk_in, Random random)
      : plan(plan_in),
        reference(reference_in),
        run("training", seed, plan.ranks),
        fault(fault_in),
        links(run.world, {}),
        disk(disk_in) {
    victim = static_cast<std::uint32_t>(random.below(plan.ranks));
    const std::uint32_t per_host = plan.ranks / plan.hosts;
    for (std::uint32_t host = 0; host < plan.hosts; ++host) {
      hosts.push_back(std::make_unique<SimHost>(run.world, host * per_host, per_host));
    }
    for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
      const bool broken = fault == Fault::kIoError && rank == victim;
      ranks.push_back(std::make_unique<TrainingRank>(
          run, plan, reference, rank, links, *hosts[rank / per_host], disk,
          SimFiles::Faults{
              .short_transfer = 0.3, .interrupted = 0.1, .io_error = broken ? 0.05 : 0},
          meeting));
    }
    plan_fault(random);
    for (const auto& rank : ranks) {
      rank->start();
    }
  }

  void plan_fault(Random& random) {
    const Duration when = microseconds(random.between(10, 1500));
    switch (fault) {
      case Fault::kSlow:
        run.world.slow_down(victim, 3 + 10 * random.uniform());
        break;
      case Fault::kClogs:
        for (int i = 0; i < 6; ++i) {
          run.world.after(microseconds(random.between(10, 4000)), 0, [this] {
            const auto from = static_cast<std::uint32_t>(run.random.below(plan.ranks));
            links.clog(from, (from + 1) % plan.ranks, microseconds(run.random.between(100, 3000)));
            run.world.pause(from, microseconds(run.random.between(10, 1000)));
          });
        }
        break;
      case Fault::kDeath:
        run.world.after(when, (victim + 1) % plan.ranks,
                        [this] { strike([&] { run.world.kill(victim); }); });
        break;
      case Fault::kDeviceLost:
        run.world.after(when, victim, [this] { strike([&] { ranks[victim]->device()->lose(); }); });
        break;
      case Fault::kVisit:
        ranks[victim]->breaks_at = random.below(2 * plan.segments());
        break;
      case Fault::kKernel:
        ranks[victim]->device()->fail_kernel(random.below(plan.units() * plan.steps));
        break;
      case Fault::kCopy:
        ranks[victim]->device()->fail_copy(random.below(2 * plan.units() * plan.steps));
        break;
      case Fault::kDiskFull:
        disk.set_capacity(disk.used_bytes() + random.below(40'000));
        break;
      case Fault::kIoError:
      case Fault::kNone:
        break;
    }
  }
  template <class Act>
  void strike(Act act) {
    if (!all_ended()) {
      struck_at = run.world.now();
      act();
    }
  }

  [[nodiscard]] bool all_ended() const {
    for (const auto& rank : ranks) {
      if (run.world.alive(rank->rank) && !rank->ended()) {
        return false;
      }
    }
    return true;
  }

  void check_end() {
    const bool harmless = fault == Fault::kNone || fault == Fault::kSlow ||
                          fault == Fault::kClogs || fault == Fault::kDiskFull;
    run.require(first_failure().empty() || !harmless,
                "a rank failed though nothing was at fault: {}", first_failure());
    bool any = false;
    TimePoint first = TimePoint::max();
    TimePoint last;
    for (const auto& rank : ranks) {
      if (!run.world.alive(rank->rank)) {
        any = true;
        continue;
      }
      if (const std::string what = rank->failure(); !what.empty()) {
        any = true;
        check_blame(*rank, what);
      }
      first = std::min(first, rank->ended_at);
      last = std::max(last, rank->ended_at);
    }
    if (any) {
      const TimePoint since = struck_at != TimePoint::max() ? struck_at : first;
      run.require(last < since + kEndsWithin, "a rank ended {} ns after the fault",
                  (last - since).count());
    } else {
      check_result();
    }
    check_same_order();
  }

  void check_blame(const TrainingRank& rank, const std::string& what) {
    run.require(rank.failed_rank() == victim, "rank {} blames rank {} instead of {} (fault {}): {}",
                rank.rank, rank.failed_rank(), victim, static_cast<int>(fault), what);
    if (rank.rank == victim) {
      const char* word = fault == Fault::kVisit        ? "a visit failed"
                         : fault == Fault::kKernel     ? "failed"
                         : fault == Fault::kCopy       ? "failed"
                         : fault == Fault::kDeviceLost ? "the device was lost"
                         : fault == Fault::kIoError    ? "Input/output error"
                                                       : "never";
      run.require(what.find(word) != std::string::npos, "rank {} says \"{}\", not \"{}\"",
                  rank.rank, what, word);
    }
  }
  std::string first_failure() const {
    for (const auto& rank : ranks) {
      if (!rank->failure().empty()) {
        return rank->failure();
      }
    }
    return "";
  }

  void check_result() {
    for (const auto& rank : ranks) {
      run.require(rank->steps_done == plan.steps, "rank {} made {} steps", rank->rank,
                  rank->steps_done);
      for (std::size_t unit = 0; unit < plan.units(); ++unit) {
        const std::size_t begin = rank->layout.slice_begin(unit);
        for (std::size_t array = 0; array < 3; ++array) {
          const std::vector<float>& whole = reference.after[plan.steps][unit][array];
          const std::vector<float>& mine = rank->end_state[unit][array];
          const std::span<const float> rest =
              std::span(whole).subspan(std::min(begin, whole.size()));
          const std::size_t held = std::min(mine.size(), rest.size());
          run.require(std::ranges::equal(std::span(mine).first(held), rest.first(held)),
                      "rank {}, unit {}, array {}: the state differs from the reference after a "
                      "start at step {}",
                      rank->rank, unit, array, rank->first_step);
        }
      }
    }
    run.require(fault == Fault::kDiskFull || fault == Fault::kIoError || meeting.failed_saves == 0,
                "a save failed on a disk without faults");
    run.require(links.frames_under_way() == 0, "{} frames were sent and not received",
                links.frames_under_way());
  }

  // Whatever happened, what two ranks issued agrees as far as both came.
  void check_same_order() {
    const auto agree = [](const std::vector<std::size_t>& a, const std::vector<std::size_t>& b) {
      const std::size_t both = std::min(a.size(), b.size());
      return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(both), b.begin());
    };
    for (const auto& rank : ranks) {
      run.require(agree(rank->recorded->gathers, ranks[0]->recorded->gathers) &&
                      agree(rank->recorded->reductions, ranks[0]->recorded->reductions),
                  "ranks 0 and {} issue collectives in different orders", rank->rank);
    }
  }

  void bury_the_dead() {
    for (const auto& rank : ranks) {
      if (!run.world.alive(rank->rank)) {
        links.cut(rank->rank);
        hosts[rank->rank / (plan.ranks / plan.hosts)]->cut(rank->rank);
        run.world.bury(rank->rank);
      }
    }
    run.until("the dead are buried", [&] { return all_ended(); });
  }

  // Waits until the loops have nothing left after the end: late answers, timers of the devices.
  void check_quiet() {
    run.until("the loops are quiet", [&] {
      for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
        if (run.world.loop(rank).has_ready_ops()) {
          return false;
        }
      }
      return true;
    });
    for (const auto& rank : ranks) {
      run.require(run.world.loop(rank->rank).asks().pending() == 0,
                  "rank {} ends with asks pending", rank->rank);
    }
  }

  const Plan& plan;
  const Reference& reference;
  Run run;
  Fault fault;
  SimNet links;
  std::vector<std::unique_ptr<SimHost>> hosts;
  std::uint32_t victim = 0;
  TimePoint struck_at = TimePoint::max();
  SimDisk& disk;
  CheckpointMeeting meeting;
  std::vector<std::unique_ptr<TrainingRank>> ranks;
};

/// One start and its end; the step of the last checkpoint that was said to be durable.
std::uint64_t start_and_end(Training& training, std::uint64_t found_step) {
  training.run.until("every rank ends", [&] { return training.all_ended(); });
  training.check_end();
  for (const auto& rank : training.ranks) {
    training.run.require(!rank->failure().empty() || !training.run.world.alive(rank->rank) ||
                             rank->first_step >= found_step,
                         "step {} was committed, and the start is at {}", found_step,
                         rank->first_step);
  }
  training.bury_the_dead();
  training.check_quiet();
  return training.meeting.committed_step;
}

SimDisk disk_with_data(const Plan& plan) {
  SimDisk disk;
  disk.put_folder(RankCheckpoints::kParent);
  disk.put_folder(".");
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    std::vector<std::byte> data(plan.steps * plan.micro_steps);
    for (std::uint64_t number = 0; number < data.size(); ++number) {
      data[number] = static_cast<std::byte>(batch_of(number));
    }
    disk.put(fmt::format("data {}", rank), data);
  }
  return disk;
}

}  // namespace

std::uint64_t rehearse_training(std::uint64_t seed) {
  Random random = Random(seed).fork("training plan");
  const Plan plan = draw_plan(random);
  const Reference reference(plan);
  Fault fault = draw_fault(plan, random);
  if (fault == Fault::kDiskFull && trains_on_disk(plan)) {  // which ends a run that trains there
    fault = Fault::kNone;
  }
  SimDisk disk = disk_with_data(plan);
  Training training(seed, plan, reference, fault, disk, random);
  const std::uint64_t committed = start_and_end(training, 0);

  Random power = random.fork("power cut");
  disk.crash(power);
  disk.set_capacity(UINT64_MAX);
  Training again(seed, plan, reference, Fault::kNone, disk, random);
  again.meeting.start = 2;
  start_and_end(again, committed);
  return training.run.world.log().hash() * 31 + again.run.world.log().hash();
}

}  // namespace tandem::sim_test
