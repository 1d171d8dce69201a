// trainer/report/trace_window.hpp — the activity of threads in the last steps of a run's
// trace.json.gz.
#pragma once

#include <filesystem>

#include "runtime/util/json_writer.hpp"

namespace tandem {

/// Writes {"length_us", "rows": [name...], "steps": [{"at_us", "step"}...],
/// "spans": [[row, name, start_us, duration_us]...], "cut"} of the last three whole steps; times
/// count from the window's begin; the last of the steps is the one behind it. Rows are of all
/// ranks, with the rank's number where there are several. Spans of one thing that follow each other
/// closely are one; `cut` says that there were more than fit. Writes null where the trace has no
/// whole step. Throws user_error where the file cannot be read.
void write_trace_window(JsonWriter& json, const std::filesystem::path& path);

}  // namespace tandem
