// trainer/report/trace_window.hpp — the activity of threads in the last steps of a run's
// trace.json.gz.
#pragma once

#include <filesystem>

#include "runtime/util/json_writer.hpp"

namespace tandem {

/// Writes {"length_us", "rows": [name...], "steps": [{"at_us", "step"}...], "spans": [[row, name,
/// start_us, duration_us]...], "cut"} of the last three whole steps; times count from the beginning
/// of the window, and the last entry of "steps" is the step behind it. Rows are of all ranks, with
/// the rank's number if there are several. Spans of one name that follow each other closely are
/// joined; "cut" says that there were more than fit. Writes null if the trace has no whole step.
/// Throws user_error if the file cannot be read.
void write_trace_window(JsonWriter& json, const std::filesystem::path& path);

}  // namespace tandem
