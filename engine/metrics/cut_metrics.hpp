// engine/metrics/cut_metrics.hpp — a run's metrics without what lies behind the step that it is
// resumed from, so that the steps made again do not stand there twice.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

/// Whether csv_monitor names its files so.
[[nodiscard]] bool is_monitor_csv(std::string_view name) noexcept;

/// The lines of a metrics.jsonl whose "step" is at most `last_step`; a torn last line goes.
[[nodiscard]] std::string metrics_until(std::string_view lines, std::int64_t last_step);
/// The records of a TensorBoard event file whose step is at most `last_step`; a torn last one goes.
[[nodiscard]] std::string events_until(std::string_view records, std::int64_t last_step);

/// The rows of a CSV file, behind the one of names, whose first column is at most `last_step`.
[[nodiscard]] std::string rows_until(std::string_view rows, std::int64_t last_step);

/// Cuts metrics.jsonl, the event files and csv_monitor's files of a folder, those that are there;
/// each is replaced as a whole. A monitor's folder has samples for steps. Throws Error naming the
/// path.
void cut_metrics(const std::string& folder, std::int64_t last_step);

}  // namespace tandem
