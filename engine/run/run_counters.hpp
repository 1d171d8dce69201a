// engine/run/run_counters.hpp — the counts from which a resumed run continues, and whether a run
// can continue after a failure.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/util/error.hpp"

namespace tandem {

struct RunCounters {
  std::int64_t global_steps = 0;  // skipped ones included
  std::int64_t applied_steps = 0;
  /// Steps of the learning rate's schedule minus applied steps; 0 except in a run that came from
  /// another program, which may count the two separately.
  std::int64_t schedule_offset = 0;
  std::int64_t skipped_steps = 0;
  int skipped_in_a_row = 0;        // not counted while an fp16 loss scale can fall
  std::int64_t micro_batches = 0;  // of this rank, trained on so far
  std::int64_t batches_taken = 0;  // the checkpoint's count, for a run without a loader
};

/// Whether a step or a load has begun and not ended. If it fails, the engine cannot continue.
struct OpenChange {
  bool is_open = false;
  std::optional<Error> failed_by;

  /// If a change is open, records `cause`, after which the engine cannot continue.
  void fail(const Error& cause) {
    if (is_open) {
      failed_by = cause;
    }
  }
};

}  // namespace tandem
