// engine/config/batch_triple.hpp — train_batch_size = micro batch x accumulation steps x world
// size, solved as DeepSpeed solves it: any two give the third, train_batch_size or the micro batch
// alone take one accumulation step.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/config/config.hpp"

namespace tandem {

struct BatchRule {
  std::string_view origin;
  std::int64_t world_size = 1;  // ranks, or groups of `sharers` ranks, with rows of their own
  std::int64_t sharers = 1;
  bool required = true;
};

/// Fills in the values that were not given (0). Throws user_error with all values and the change
/// that corrects them.
void solve_batch(BatchConfig& batch, const BatchRule& rule);

}  // namespace tandem
