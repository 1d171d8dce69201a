// engine/metrics/module_profile.hpp — a model as a tree of modules, with parameters, operations of
// the forward, and times.
//
// The model's parts are its segments; a segment's are the modules that the names of its parameters
// make ("self_attn" of "model.layers.0.self_attn.q_proj.weight"). Operations are flops.hpp's; times
// are known only for segments, the smallest pieces that the compute lane runs.
// Invariant: a module's figures include those of its submodules. A parameter counts in the module
// that uses it first, its operations in each module that uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/types/model.hpp"

namespace tandem {

struct ModuleProfile {
  std::string name;
  std::int64_t parameters = 0;
  double forward_flops = 0;
  double backward_flops = 0;         // of the model and its segments
  std::optional<double> forward_s;   // likewise
  std::optional<double> backward_s;  // likewise, with the forward that it runs again
  std::vector<ModuleProfile> parts;

  [[nodiscard]] double forward_macs() const noexcept { return forward_flops / 2; }
};

/// A micro-batch that was run.
struct BatchExtents {
  std::int64_t rows = 0;
  std::int64_t length = 1;  // tokens of a row
  double share = 1;         // this rank's share of it, if ranks share rows
};

struct SegmentSeconds {
  double forward = 0;
  double backward = 0;
};

/// Returns the profile of a step that ran `batches`; `seconds` by segment. `recomputes`: backward
/// runs the forward of all segments except the last one again.
[[nodiscard]] ModuleProfile profile_modules(const Model& model,
                                            std::span<const BatchExtents> batches,
                                            std::span<const SegmentSeconds> seconds,
                                            bool recomputes);

}  // namespace tandem
