// engine/types/loss_scale_state.hpp — the state of a dynamic loss scaler in a checkpoint, ours or
// another program's.
#pragma once

#include <cstdint>

namespace tandem {

struct LossScaleState {
  double scale = 0;
  std::int64_t step = 0;            // updates so far
  std::int64_t last_overflow = -1;  // the step of it
  int hysteresis = 0;               // overflows left until the scale falls, plus one
  bool operator==(const LossScaleState&) const = default;
};

}  // namespace tandem
