// trainer/flags/flag_values.hpp — flags whose texts stand for something else: durations, lists,
// ranges and shares of steps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// Returns the seconds of a text such as "90s", "45m" or "3h50m". Throws user_error.
double parse_duration_s(const std::string& flag, const std::string& text);

/// Returns the texts between the commas.
std::vector<std::string> split(const std::string& list);

/// --trace_steps A:B, both included.
struct TracedSteps {
  std::int64_t first = 0;  // 0: all steps for which there is room
  std::int64_t last = 0;
};
/// An empty text stands for all steps. Throws user_error for a text that is no such range.
[[nodiscard]] TracedSteps parse_traced_steps(const std::string& text);

/// Returns the steps of a flag that takes a count, or below 1 a share of `all`, rounded up as
/// Transformers does.
std::int64_t steps_of(double count_or_share, std::int64_t all);
/// Throws user_error for a number that is neither a count nor a share.
void require_count_or_share(std::string_view flag, double value);

}  // namespace tandem
