// runtime/report.hpp — reports for which no caller waits: failures that nothing took, awaits that
// outlast a deadline, checks that failed.
//
// Each report is one line on stderr (more if several tasks are named), unless a hook takes it. A
// failed check (util/check.hpp) prints its line on stderr in any case, calls the hook, and ends the
// process when the hook returns.
// Thread rule: any thread; the hook is called on the thread that reports, and must not throw.
//
//   set_report_hook([](std::string_view line) noexcept { my_log(line); });
#pragma once

#include <string_view>

namespace tandem {

using ReportHook = void (*)(std::string_view line) noexcept;

/// Sets the hook (null: stderr) and returns the previous one.
ReportHook set_report_hook(ReportHook hook) noexcept;

/// Passes `line` to the hook, or prints it on stderr.
void report(std::string_view line) noexcept;

}  // namespace tandem
