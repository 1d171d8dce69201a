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

/// `epochs` epochs over `records`, or `steps` steps where those are above 0. An epoch has a step at
/// least.
[[nodiscard]] RunLength run_length(const Config& config, std::int64_t records, std::int64_t steps,
                                   double epochs);

}  // namespace tandem
