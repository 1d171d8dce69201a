// trainer/run_trace.hpp — a trainer's trace: which steps are recorded, and trace.json.gz
// of all ranks.
//
// Each rank records for itself, and nothing is exchanged while it trains. When training is over the
// ranks agree on one window of time, each writes its part, and the first one merges them; the clock
// of all is the host's. A part that is lost costs the report alone.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine.hpp"
#include "trainer/flags/run_flags.hpp"
#include "trainer/metrics/metrics_writer.hpp"

namespace tandem {

/// Throws user_error where a run that has done `done` steps and ends with `total` does none of
/// them.
void require_traced_steps(const RunFlags& flags, std::int64_t done, std::int64_t total);

/// Begins to record, where the flags say so. On the thread that will be the loop's.
void begin_trace(const RunFlags& flags);
/// Training is over: what follows is not recorded.
void end_trace();

/// Writes output_dir/trace.json.gz, where the flags say so. A collective. `model`: its name, for
/// the file's reader.
void write_run_trace(const RunFlags& flags, const std::string& model, Engine& engine,
                     MetricsWriter& metrics);

}  // namespace tandem
