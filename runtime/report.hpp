// runtime/report.hpp — what the runtime has to say and no caller waits for: failures that nothing
// took, deadlines that an await kept waiting, checks that failed.
//
// One line on stderr each (more where several tasks are named), unless a hook takes them. A failed
// check (util/check.hpp) says its line on stderr in any case, calls the hook, and ends the process
// when the hook returns.
// Thread rule: any thread; the hook is called on the thread where it happened, and does not throw.
//
//   set_report_hook([](std::string_view line) noexcept { my_log(line); });
#pragma once

#include <string_view>

namespace tandem {

using ReportHook = void (*)(std::string_view line) noexcept;

/// Returns the one before; null: stderr.
ReportHook set_report_hook(ReportHook hook) noexcept;

/// Says `line` to the hook, or on stderr.
void report(std::string_view line) noexcept;

}  // namespace tandem
