// bench/overlap/control.hpp — what the actors cost between a gradient and its update.
//
// The real parts of a rank (slots, bucket, collectives, optimizer) on a unit of one chunk: from the
// end of the last chunk that wrote the reduced gradient, on the link pool's thread, to the first
// chunk of its Adam on the optimizer's thread. In between: the way to the loop, four messages, and
// the waking of the pool. Read from the runtime's own trace.
#pragma once

#include <vector>

#include "runtime/clock.hpp"

namespace tandem::bench {

struct ControlRun {
  std::vector<double> ready_to_adam_s;  // of each gradient
  double wall_s = 0;                    // of all of them
  double cpu_s = 0;                     // of the process meanwhile
};

/// Updates of `times` gradients; before each the compute lane works for `compute`.
[[nodiscard]] ControlRun run_control(int times, Duration compute);

}  // namespace tandem::bench
