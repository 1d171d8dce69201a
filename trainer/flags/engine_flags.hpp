// trainer/flags/engine_flags.hpp — the engine's options on a command line, each written once,
// for the trainers and `tandem plan`.
#pragma once

#include <string>

#include "engine/distributed/reduction.hpp"
#include "engine/types/options.hpp"

namespace CLI {
class App;
}

namespace tandem {

struct EngineFlags {
  std::string device = "auto";
  std::string sim_spec;
  ReductionOrder reduction = ReductionOrder::kExact;  // of ProcessGroup
  EngineOptions engine;                               // but for those above
};

void add_engine_flags(CLI::App& app, EngineFlags& flags);

/// Throws user_error for values that make no sense on that device.
void check_engine_flags(const EngineFlags& flags, DeviceKind device);

/// All of it, on that device.
[[nodiscard]] EngineOptions engine_options(const EngineFlags& flags, DeviceKind device);

}  // namespace tandem
