// trainer/report/run_report.hpp — makes one HTML page from the files in runs' folders. The page
// needs no network and no other file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem {

/// Returns the page of the runs in those folders. Throws user_error for a folder without a
/// metrics.jsonl that has a step; the page names other files that are missing or damaged.
[[nodiscard]] std::string report_page(const std::vector<std::filesystem::path>& runs);

/// Writes it to `output`, complete or not at all.
void write_report(const std::vector<std::filesystem::path>& runs,
                  const std::filesystem::path& output);

}  // namespace tandem
