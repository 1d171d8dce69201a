// engine/memory/memory_check.hpp — whether a memory plan fits, and the smallest change that makes
// it fit.
//
// Checked before anything is allocated or written. A run that does not fit ends with exit code 3,
// the plan's table, and one line that says which memory is too small and what to change. Pure,
// except MemoryLimits::of_machine(). Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory/memory_plan.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string source;  // what set it
};

/// Absent: no limit is known.
struct MemoryLimits {
  std::optional<MemoryLimit> device;  // of one rank's accelerator
  // of a host, for all of its ranks: pinned, private and shared memory
  std::optional<MemoryLimit> host;
  std::optional<MemoryLimit> disk;
  std::optional<MemoryLimit> nvme;  // of a host, for all of its ranks

  /// Returns the free memory of this machine: MemAvailable, at most the cgroup's limit; the
  /// accelerator's free memory. Memory that the `ranks_per_host` processes of this run already use
  /// counts as free, because the plan counts it, too. (Shared memory is memfds: the size of
  /// /dev/shm does not limit them.)
  static MemoryLimits of_machine(std::int64_t ranks_per_host, bool accelerator);
};

/// The kind of memory that a plan lacks most.
struct Shortfall {
  MemoryKind kind = MemoryKind::kHost;
  std::int64_t needed = 0;
  MemoryLimit limit;
};
[[nodiscard]] std::optional<Shortfall> shortfall_of(const MemoryPlan& plan,
                                                    const MemoryLimits& limits);

/// Changes that an advice may name; trainers switch off those that they do not offer.
struct ChangesAllowed {
  bool state_formats = true;  // optimizer_state
  bool ranks = true;
  bool nvme = true;             // state and weights in files
  bool ratio_is_given = false;  // offload_ratio, of the options or the config
};

/// Offloads the fewest boundaries with which the run fits, with placements and all else unchanged;
/// all movable ones if that is not enough. Changes nothing without a limit, or if the input does
/// not leave the choice open.
void choose_offload(const Model& model, PlanInput& input, const MemoryLimits& limits);

/// Plans memory and places the optimizer's state: on the host as far as it fits, then on the
/// accelerator from the first unit on (the first units' weights are needed soonest, so they gain
/// most). If shadows are to be chosen, they get the remaining memory less a reserve
/// (ShadowBudget::room_of()).
/// Boundaries are offloaded if that is to be chosen (choose_offload()). The accelerator's memory
/// that is left then is for gather slots, if their number is to be chosen.
[[nodiscard]] MemoryPlan plan_and_place(const Model& model, PlanInput& input,
                                        const MemoryLimits& limits);

struct Change {
  std::vector<std::string> parts;  // "--activation_checkpointing", ...
  PlanInput input;
  MemoryPlan plan;

  [[nodiscard]] std::string text() const;
};
/// Returns the least intrusive change with which the run fits; nullopt if no change of up to four
/// parts is enough.
[[nodiscard]] std::optional<Change> smallest_change(const Model& model, const PlanInput& input,
                                                    const MemoryLimits& limits,
                                                    const ChangesAllowed& allowed = {});

struct FitReport {
  MemoryPlan plan;
  std::optional<Shortfall> lacks;  // absent: the run fits
  // If it does not fit: the smallest change without more ranks; NVMe is the last resort.
  std::optional<Change> change;
  std::optional<Change> ranks;  // with more ranks, if `change` is absent or uses NVMe

  /// One line: what is short and what to do.
  [[nodiscard]] std::string advice() const;
  /// The table, the limits under it, and the advice.
  [[nodiscard]] std::string text(const MemoryLimits& limits) const;
  [[nodiscard]] std::string json(const MemoryLimits& limits) const;
};
[[nodiscard]] FitReport check_fit(const Model& model, PlanInput input, const MemoryLimits& limits,
                                  const ChangesAllowed& allowed = {});

/// Thrown if a run does not fit: what() is the advice, table() the plan.
class DoesNotFit : public Error {
 public:
  DoesNotFit(const std::string& advice, std::string table)
      : Error(ExitCode::kRefused, "[memory] " + advice), table_(std::move(table)) {}
  [[nodiscard]] const std::string& table() const noexcept { return table_; }

 private:
  std::string table_;
};

/// Throws DoesNotFit unless the run fits. `with_table`: whether the error carries the table; one
/// rank's error with it is enough.
void require_fit(const FitReport& report, const MemoryLimits& limits, bool with_table = true);

}  // namespace tandem
