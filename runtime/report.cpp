#include "runtime/report.hpp"

#include <atomic>
#include <cstdio>

#include "runtime/util/check.hpp"

namespace tandem {
namespace {
std::atomic<ReportHook> g_hook{nullptr};
}

ReportHook set_report_hook(ReportHook hook) noexcept {
  detail::check_hook.store(
      hook == nullptr ? nullptr : +[](const char* line) noexcept { report(line); },
      std::memory_order_release);
  return g_hook.exchange(hook, std::memory_order_acq_rel);
}

void report(std::string_view line) noexcept {
  if (const ReportHook hook = g_hook.load(std::memory_order_acquire)) {
    hook(line);
  } else {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  }
}

}  // namespace tandem
