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

/// Seconds, one for each of `times` gradients; before each the compute lane works for `compute`.
[[nodiscard]] std::vector<double> ready_to_adam_s(int times, Duration compute);

}  // namespace tandem::bench
