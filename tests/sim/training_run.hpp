// tests/sim/training_run.hpp — a rehearsed training from a start of the program to its end, with at
// most one fault.
//
// Without a fault every rank ends with the reference's state; with one every surviving rank ends in
// time and names the rank that was at fault.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/training_rank.hpp"

namespace tandem::sim_test {

enum class Fault {
  kNone,
  kSlow,
  kClogs,
  kDeath,  // before a turn
  kStop,   // the actors are told to stop, while an operation is under way or before a turn
  kFails,  // an operation does
  kDeviceLost,
  kDiskFull,
  kIoError,    // some calls for data and checkpoints fail
  kNvmeError,  // some for state, weights and boundaries
  kPowerCut,   // the disks' state at a turn is found; this start runs on without knowing
};

/// A fault, and where it strikes.
struct Strike {
  Fault fault = Fault::kNone;
  std::uint32_t victim = 0;
  Operation operation = Operation::kTurn;
  std::uint64_t at = 0;        // the victim's operation of that kind, counted from 0
  Duration when{};             // of kDeviceLost
  double factor = 1;           // of kSlow
  std::uint64_t capacity = 0;  // of kDiskFull: bytes that are left
  double error_chance = 0;     // of kIoError and kNvmeError: of each call

  /// "update chunk 7 of rank 1 fails".
  [[nodiscard]] std::string text() const;
};

/// The disks that the start after a power cut finds.
struct FoundDisks {
  std::vector<SimDisk> disks;
  std::uint64_t step = 0;  // of the last checkpoint that was said to be durable by then; 0: none
};

class TrainingRun {
 public:
  /// All but `strike` outlive it. `start`: the number of the program's start, from 1.
  TrainingRun(std::uint64_t seed, const Plan& plan, const Reference& reference, Strike strike,
              std::vector<SimDisk>& disks, std::uint64_t start);

  /// Nothing is left to be reported of ranks that failed.
  ~TrainingRun();
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Until every rank has ended and nothing is pending; checks all that was promised. `found_step`:
  /// the step of the last checkpoint that was said to be durable.
  void to_end(std::uint64_t found_step);

  /// Cuts the power, unless the strike has done so.
  [[nodiscard]] FoundDisks after_power_cut();

  [[nodiscard]] OperationCounts operations_of(std::uint32_t rank) const;
  [[nodiscard]] std::uint64_t log_hash() { return run_.world.log().hash(); }

 private:
  void plan_strike();
  void cut_power();
  template <class Act>
  void strike(Act act);
  [[nodiscard]] bool all_ended() const;
  [[nodiscard]] std::string first_failure() const;
  void check_end();
  void check_blame(const TrainingRank& rank, const std::string& what);
  void check_result();
  void check_state(const TrainingRank& rank, std::uint64_t steps);
  void check_noticed(bool any_failed);
  void check_same_order();
  void bury_the_dead();
  void check_quiet();

  const Plan& plan_;
  const Reference& reference_;
  Run run_;
  Strike strike_;
  SimNet links_;
  std::vector<std::unique_ptr<SimHost>> hosts_;
  TimePoint struck_at_ = TimePoint::max();
  std::vector<SimDisk>& disks_;
  std::optional<FoundDisks> found_;
  CheckpointMeeting meeting_;
  std::vector<std::unique_ptr<TrainingRank>> ranks_;
};

/// Whether ranks keep anything of a step on NVMe.
[[nodiscard]] bool trains_on_disk(const Plan& plan);

}  // namespace tandem::sim_test
