// trainer/run_trace.hpp — records a trainer's steps, and writes trace.json.gz of all ranks.
//
// Each rank records for itself, and nothing is exchanged while it trains. When training is over the
// ranks agree on one window of time, each writes its part, and the first one merges them; the clock
// of all is the host's. If a part is lost, only the report is incomplete.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine.hpp"
#include "trainer/flags/run_flags.hpp"
#include "trainer/metrics/metrics_writer.hpp"

namespace tandem {

/// Throws user_error if a run from step `done` to step `total` has none of the traced steps.
void require_traced_steps(const RunFlags& flags, std::int64_t done, std::int64_t total);

/// Begins to record if the flags say so. Call it on the thread that will be the loop's.
void begin_trace(const RunFlags& flags);
/// Ends recording, after training.
void end_trace();

/// Writes output_dir/trace.json.gz if the flags say so. A collective. `model`: the model's name,
/// for the file's reader.
void write_run_trace(const RunFlags& flags, const std::string& model, Engine& engine,
                     MetricsWriter& metrics);

}  // namespace tandem
