#include "trainer/flags/flag_values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "runtime/util/error.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

double parse_duration_s(const std::string& flag, const std::string& text) {
  double total_s = 0;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at < end) {
    double number = 0;
    const auto read = std::from_chars(at, end, number);
    const double unit_s = read.ptr == end    ? 0
                          : *read.ptr == 's' ? 1
                          : *read.ptr == 'm' ? 60
                          : *read.ptr == 'h' ? 3600
                                             : 0;
    if (read.ec != std::errc() || unit_s == 0 || number < 0) {
      total_s = 0;
      break;
    }
    total_s += number * unit_s;
    at = read.ptr + 1;
  }
  if (!(total_s > 0)) {
    throw user_error("flags", "{} is \"{}\"; give a time above 0, like 90s, 45m or 3h50m", flag,
                     text);
  }
  return total_s;
}

TracedSteps parse_traced_steps(const std::string& text) {
  TracedSteps steps;
  if (text.empty()) {
    return steps;
  }
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, steps.first);
  const bool colon = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto last = colon ? std::from_chars(first.ptr + 1, end, steps.last) : first;
  if (!colon || last.ec != std::errc() || last.ptr != end || steps.first < 1 ||
      steps.last < steps.first) {
    throw user_error("flags",
                     "--trace_steps is \"{}\"; give the first and the last step, like 20:30", text);
  }
  return steps;
}

std::int64_t steps_of(double count_or_share, std::int64_t all) {
  return static_cast<std::int64_t>(
      count_or_share < 1 ? std::ceil(count_or_share * static_cast<double>(all)) : count_or_share);
}

void require_count_or_share(std::string_view flag, double value) {
  require_not_negative(flag, value);
  if (value > 1 && value != std::floor(value)) {
    throw user_error("flags", "{} is {}; it is a number of steps, or below 1 a share of them", flag,
                     value);
  }
}

}  // namespace tandem
