// engine/metrics/cut_metrics.hpp — removes the metrics of steps after the one that a run resumes
// from, so that repeated steps do not appear twice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

/// Whether this is the name of a file of csv_monitor.
[[nodiscard]] bool is_monitor_csv(std::string_view name) noexcept;

/// Returns the lines of a metrics.jsonl whose "step" is at most `last_step`, without an incomplete
/// last line.
[[nodiscard]] std::string metrics_until(std::string_view lines, std::int64_t last_step);
/// Returns the records of a TensorBoard event file whose step is at most `last_step`, without an
/// incomplete last one.
[[nodiscard]] std::string events_until(std::string_view records, std::int64_t last_step);

/// Returns the header of a CSV file and the rows whose first column is at most `last_step`.
[[nodiscard]] std::string rows_until(std::string_view rows, std::int64_t last_step);

/// Cuts a folder's metrics.jsonl, event files and csv_monitor's files, as far as they exist; each
/// is replaced as a whole. In a monitor's folder `last_step` counts samples. Throws Error naming
/// the path.
void cut_metrics(const std::string& folder, std::int64_t last_step);

}  // namespace tandem
