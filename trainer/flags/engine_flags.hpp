// trainer/flags/engine_flags.hpp — the engine's options on a command line, each written once,
// for the trainers and `tandem plan`.
#pragma once

#include <string>
#include <vector>

#include "engine/distributed/reduction.hpp"
#include "engine/types/options.hpp"

namespace tandem {

struct FlagGroup;

struct EngineFlags {
  std::string device = "auto";
  std::string sim_spec;
  ReductionOrder reduction = ReductionOrder::kExact;  // of ProcessGroup
  EngineOptions engine;                               // except for the options above
};

/// Returns the flags' rows for a table (flag_table.hpp).
[[nodiscard]] FlagGroup engine_flags(EngineFlags& flags);

/// Throws user_error for flags that contradict each other, or make no sense on that device.
void check_engine_flags(const EngineFlags& flags, DeviceKind device);

/// Returns all options, for that device.
[[nodiscard]] EngineOptions engine_options(const EngineFlags& flags, DeviceKind device);

}  // namespace tandem
