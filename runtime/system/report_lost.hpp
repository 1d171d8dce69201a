// runtime/system/report_lost.hpp — the exit code of a run that trained and saved all, and lost a
// report on the way. A supervisor has no reason to start it over.
#pragma once

#include "runtime/util/error.hpp"

namespace tandem {

inline constexpr ExitCode kReportLost{6};

}  // namespace tandem
