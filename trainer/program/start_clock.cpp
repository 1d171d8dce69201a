#include "trainer/program/start_clock.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

namespace tandem {

namespace {

/// Since the system made this process; 0 where it does not say.
double age_s() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // The second field is a name in brackets, which may hold anything; the start is the 22nd.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string field;
  constexpr int kStart = 22;
  constexpr int kBehindName = 3;
  for (int i = kBehindName; i < kStart; ++i) {
    fields >> field;
  }
  double ticks = 0;
  timespec now{};
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
    return 0;
  }
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

void StartClock::mark(std::string_view part) {
  const double now_s = age_s();
  parts_.emplace_back(part, now_s - marked_s_);
  marked_s_ = now_s;
}

std::string StartClock::text() const {
  std::string parts;
  for (const auto& [part, seconds] : parts_) {
    parts += fmt::format("{}{} {:.2f}", parts.empty() ? "" : ", ", part, seconds);
  }
  return fmt::format("start    {:.2f} s: {}", marked_s_, parts);
}

}  // namespace tandem
