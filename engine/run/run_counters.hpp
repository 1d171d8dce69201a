// engine/run/run_counters.hpp — the counts that a run goes on from, and whether it can go on.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/util/error.hpp"

namespace tandem {

struct RunCounters {
  std::int64_t global_steps = 0;  // skipped ones included
  std::int64_t applied_steps = 0;
  /// Steps of the learning rate's schedule beyond the applied ones: of a run that came from another
  /// program, which may count them apart.
  std::int64_t schedule_offset = 0;
  std::int64_t skipped_steps = 0;
  int skipped_in_a_row = 0;        // but while an fp16 loss scale falls
  std::int64_t micro_batches = 0;  // of this rank, trained on so far
  std::int64_t batches_taken = 0;  // of a loader, where the run has none: as the checkpoint says
};

/// A step or a load that has begun and has not ended. After a failure amid one the engine cannot go
/// on.
struct OpenChange {
  bool is_open = false;
  std::optional<Error> failed_by;

  /// Amid a change: `cause` ends the engine.
  void fail(const Error& cause) {
    if (is_open) {
      failed_by = cause;
    }
  }
};

}  // namespace tandem
