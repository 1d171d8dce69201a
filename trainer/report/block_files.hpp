// trainer/report/block_files.hpp — the files of a config's comms_logger and flops_profiler in a
// run's folder.
#pragma once

#include <string_view>

namespace tandem {

inline constexpr std::string_view kCommsFile = "comms.json";
inline constexpr std::string_view kFlopsFile = "flops_profile.json";

}  // namespace tandem
