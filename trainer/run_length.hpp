// trainer/run_length.hpp — how many optimizer steps a run has.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/config.hpp"

namespace tandem {

struct RunLength {
  std::int64_t steps = 0;
  std::int64_t per_epoch = 0;

  /// "384 steps = 3 epochs of 128".
  [[nodiscard]] std::string text() const;
};

/// Returns the length of `epochs` epochs over `records`, or of `steps` steps if that is above 0. An
/// epoch has at least one step.
[[nodiscard]] RunLength run_length(const Config& config, std::int64_t records, std::int64_t steps,
                                   double epochs);

}  // namespace tandem
