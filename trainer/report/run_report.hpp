// trainer/report/run_report.hpp — one HTML page of what runs left in their folders. It
// needs no network and no other file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem {

/// The page of the runs in those folders. A folder needs its metrics.jsonl with a step; what else
/// is absent or damaged is named on the page. Throws user_error.
[[nodiscard]] std::string report_page(const std::vector<std::filesystem::path>& runs);

/// Writes it to `output`, complete or not at all.
void write_report(const std::vector<std::filesystem::path>& runs,
                  const std::filesystem::path& output);

}  // namespace tandem
