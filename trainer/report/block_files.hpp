// trainer/report/block_files.hpp — what a config's comms_logger and flops_profiler leave
// in a run's folder.
#pragma once

#include <string_view>

namespace tandem {

inline constexpr std::string_view kCommsFile = "comms.json";
inline constexpr std::string_view kFlopsFile = "flops_profile.json";

}  // namespace tandem
