// N ranks train with the step that ships, whatever its settings, and save beside it, with at most
// one fault: without one every visit sees the weights of the reference, and the state at the end is
// its own, bit for bit; with one every surviving rank ends in time and names who or what was at
// fault. Then the power goes, and whatever the disk has kept, a start from it reaches the
// reference's state. A save that fails costs the training nothing.
#include <utility>
#include <vector>

#include "runtime/util/build.hpp"
#include "tests/sim/training_run.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;

// A sanitizer's build is ten times as slow; it looks at memory and threads, not for each place.
constexpr std::uint64_t kFaultStride = kAddressSanitizer || kThreadSanitizer ? 7 : 1;

Fault draw_fault(const Plan& plan, Random& random) {
  if (random.chance(0.4)) {
    return random.fork("power cut").chance(0.5) ? Fault::kPowerCut : Fault::kNone;
  }
  const auto fault = static_cast<Fault>(1 + random.below(11));
  const bool of_device =
      fault == Fault::kKernel || fault == Fault::kCopy || fault == Fault::kDeviceLost;
  if (of_device && !plan.on_device) {
    return Fault::kVisit;
  }
  // A full disk ends a run that trains there.
  return fault == Fault::kDiskFull && trains_on_disk(plan) ? Fault::kNone : fault;
}

Strike draw_strike(const Plan& plan, Random& random) {
  Strike strike{.fault = draw_fault(plan, random),
                .victim = static_cast<std::uint32_t>(random.below(plan.ranks))};
  strike.when = microseconds(random.between(10, 1500));
  switch (strike.fault) {
    case Fault::kSlow:
      strike.factor = 3 + 10 * random.uniform();
      break;
    case Fault::kDeath:
    case Fault::kStop:
    case Fault::kPowerCut:
      strike.at = random.below(400);
      break;
    case Fault::kVisit:
      strike.at = random.below(2 * plan.segments() * plan.micro_steps * plan.steps);
      break;
    case Fault::kKernel:
      strike.at = random.below(plan.units() * plan.steps);
      break;
    case Fault::kCopy:
      strike.at = random.below(2 * plan.units() * plan.steps);
      break;
    case Fault::kDiskFull:
      strike.capacity = random.below(40'000);
      break;
    case Fault::kIoError:
    case Fault::kNvmeError:
      strike.error_chance = 0.05;
      break;
    default:
      break;
  }
  return strike;
}

std::vector<SimDisk> disks_with_data(const Plan& plan) {
  std::vector<SimDisk> disks(plan.disk_count());
  for (SimDisk& disk : disks) {
    disk.put_folder(RankCheckpoints::kParent);
    disk.put_folder(".");
  }
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    std::vector<std::byte> data(plan.steps * plan.micro_steps);
    for (std::uint64_t number = 0; number < data.size(); ++number) {
      data[number] = static_cast<std::byte>(batch_of(number));
    }
    for (SimDisk& disk : disks) {
      disk.put(fmt::format("data {}", rank), data);
    }
  }
  return disks;
}

struct Rehearsal {
  std::uint64_t hash = 0;
  std::vector<OperationCounts> operations;  // [rank] of the first start
};

/// A start with that fault, a power cut, and a start without one.
Rehearsal rehearse(std::uint64_t seed, const Plan& plan, const Reference& reference,
                   Strike strike) {
  renew_time_limit();
  std::vector<SimDisk> disks = disks_with_data(plan);
  TrainingRun training(seed, plan, reference, strike, disks, /*start=*/1);
  training.to_end(0);
  Rehearsal rehearsal;
  for (std::uint32_t rank = 0; rank < plan.ranks; ++rank) {
    rehearsal.operations.push_back(training.operations_of(rank));
  }
  FoundDisks found = training.after_power_cut();
  TrainingRun again(seed, plan, reference, {}, found.disks, /*start=*/2);
  again.to_end(found.step);
  rehearsal.hash = training.log_hash() * 31 + again.log_hash();
  return rehearsal;
}

}  // namespace

std::uint64_t rehearse_training(std::uint64_t seed) {
  Random random = Random(seed).fork("training plan");
  const Plan plan = draw_plan(random);
  const Reference reference(plan);
  const Strike strike = draw_strike(plan, random);
  return rehearse(seed, plan, reference, strike).hash;
}

std::uint64_t rehearse_each_fault(std::uint64_t seed) {
  Random random = Random(seed).fork("training plan");
  Plan plan = draw_plan(random);
  plan.hosts = 1 + seed % 2;
  plan.ranks = 2;
  plan.steps = 2;
  plan.save_every = 1;
  plan.own_disks = plan.hosts > 1 && seed % 4 == 1;
  const Reference reference(plan);
  const Rehearsal whole = rehearse(seed, plan, reference, {});
  std::uint64_t hash = whole.hash;
  for (std::uint32_t victim = 0; victim < plan.ranks; ++victim) {
    const OperationCounts& counts = whole.operations[victim];
    const std::pair<Fault, std::uint64_t> kinds[] = {
        {Fault::kDeath, counts.turns},        {Fault::kStop, counts.turns},
        {Fault::kPowerCut, counts.turns},     {Fault::kVisit, counts.visits},
        {Fault::kKernel, counts.kernels},     {Fault::kCopy, counts.copies},
        {Fault::kIoError, counts.file_calls}, {Fault::kNvmeError, counts.nvme_calls}};
    for (const auto& [fault, count] : kinds) {
      for (std::uint64_t at = seed % kFaultStride; at < count; at += kFaultStride) {
        const Strike strike{.fault = fault, .victim = victim, .at = at};
        hash = hash * 31 + rehearse(seed, plan, reference, strike).hash;
      }
    }
  }
  return hash;
}

}  // namespace tandem::sim_test
