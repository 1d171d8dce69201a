// N ranks train with the step that ships, whatever its settings, and save beside it, with at most
// one fault: without one every visit sees the weights of the reference, and the state at the end is
// its own, bit for bit; with one every surviving rank ends in time and names who or what was at
// fault. Then the power goes, and whatever the disk has kept, a start from it reaches the
// reference's state. A save that fails costs the training nothing.
#include <utility>
#include <vector>

#include "tests/sim/training_run.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;

Fault draw_fault(const Plan& plan, Random& random) {
  if (random.chance(0.4)) {
    return random.fork("power cut").chance(0.5) ? Fault::kPowerCut : Fault::kNone;
  }
  constexpr Fault kFaults[] = {
      Fault::kSlow,  Fault::kClogs,      Fault::kDeath,    Fault::kStop,    Fault::kStop,
      Fault::kFails, Fault::kFails,      Fault::kFails,    Fault::kFails,   Fault::kFails,
      Fault::kFails, Fault::kDeviceLost, Fault::kDiskFull, Fault::kIoError, Fault::kNvmeError};
  const Fault fault = kFaults[random.below(std::size(kFaults))];
  if (fault == Fault::kDeviceLost && !plan.on_device) {
    return Fault::kFails;
  }
  // A full disk ends a run that trains there.
  return fault == Fault::kDiskFull && trains_on_disk(plan) ? Fault::kNone : fault;
}

Strike draw_strike(const Plan& plan, Random& random) {
  return {.fault = draw_fault(plan, random),
          .victim = static_cast<std::uint32_t>(random.below(plan.ranks)),
          .when = microseconds(random.between(10, 1500)),
          .factor = 3 + 10 * random.uniform(),
          .capacity = random.below(40'000),
          .error_chance = 0.05};
}

/// Draws the operation at which it strikes, of those that a run without it has.
void draw_operation(Strike& strike, const OperationCounts& counts, Random& random) {
  const bool at_turn = strike.fault == Fault::kDeath || strike.fault == Fault::kPowerCut;
  strike.operation = at_turn || random.chance(0.1)
                         ? Operation::kTurn
                         : static_cast<Operation>(random.below(kOperations));
  while (counts[static_cast<std::size_t>(strike.operation)] == 0 ||
         (strike.fault == Fault::kFails && strike.operation == Operation::kTurn)) {
    strike.operation = static_cast<Operation>(random.below(kOperations));
  }
  strike.at = random.below(counts[static_cast<std::size_t>(strike.operation)]);
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

/// The faults that each operation of that kind meets once.
std::vector<Fault> faults_at(Operation operation) {
  if (operation == Operation::kTurn) {
    return {Fault::kStop, Fault::kDeath, Fault::kPowerCut};
  }
  return {Fault::kStop, Fault::kFails};
}

struct Rehearsal {
  std::uint64_t hash = 0;
  std::vector<OperationCounts> operations;  // [rank] of the first start
};

/// Counts the operations of a rank that no fault meets.
OperationCounts count_operations(std::uint64_t seed, const Plan& plan, const Reference& reference,
                                 std::uint32_t rank) {
  std::vector<SimDisk> disks = disks_with_data(plan);
  TrainingRun training(seed, plan, reference, {}, disks, /*start=*/1);
  training.to_end(0);
  return training.operations_of(rank);
}

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
  Strike strike = draw_strike(plan, random);
  if (strike.fault == Fault::kDeath || strike.fault == Fault::kStop ||
      strike.fault == Fault::kFails || strike.fault == Fault::kPowerCut) {
    draw_operation(strike, count_operations(seed, plan, reference, strike.victim), random);
  }
  return rehearse(seed, plan, reference, strike).hash;
}

Outcome rehearse_each_fault(std::uint64_t seed, std::uint64_t stride) {
  Random random = Random(seed).fork("training plan");
  Plan plan = draw_plan(random);
  plan.stage = static_cast<int>(seed % 4);
  if (plan.stage < 3) {
    plan.engine.nvme.weights_in_memory.reset();
  }
  plan.hosts = 1 + static_cast<std::uint32_t>(seed + seed / 4) % 2;
  plan.ranks = 2;
  plan.steps = 2;
  plan.save_every = 1;
  plan.own_disks = plan.hosts > 1 && seed % 4 == 1;
  const Reference reference(plan);
  const Rehearsal whole = rehearse(seed, plan, reference, {});
  Outcome outcome{.scenario = "each fault", .hash = whole.hash};
  for (std::uint32_t victim = 0; victim < plan.ranks; ++victim) {
    for (std::size_t i = 0; i < kOperations; ++i) {
      const auto operation = static_cast<Operation>(i);
      const std::uint64_t count = whole.operations[victim][i];
      for (std::uint64_t at = seed % stride; at < count; at += stride) {
        for (const Fault fault : faults_at(operation)) {
          const Strike strike{.fault = fault, .victim = victim, .operation = operation, .at = at};
          outcome.hash = outcome.hash * 31 + rehearse(seed, plan, reference, strike).hash;
          ++outcome.runs;
        }
      }
    }
  }
  return outcome;
}

}  // namespace tandem::sim_test
