// engine/types/parameter_group.hpp — parameters that are updated alike.
#pragma once

#include <optional>

namespace tandem {

/// Parameters that are updated alike; which ones: ParameterSpec::group.
struct ParameterGroup {
  double learning_rate_factor = 1;     // on the schedule's
  std::optional<double> weight_decay;  // instead of the optimizer block's
};

}  // namespace tandem
