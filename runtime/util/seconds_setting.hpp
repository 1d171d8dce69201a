// runtime/util/seconds_setting.hpp — reads a duration from an environment variable. Any thread.
#pragma once

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "runtime/util/error.hpp"

namespace tandem {

/// Returns the seconds that the variable `name` holds; `otherwise` if it is not set or empty.
/// Throws a user error for anything but a number above 0 and up to 1e9.
[[nodiscard]] inline std::chrono::nanoseconds seconds_setting(const char* name,
                                                              std::chrono::nanoseconds otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == 0) {
    return otherwise;
  }
  const std::string_view given = text;
  double seconds = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), seconds);
  if (error != std::errc() || end != given.data() + given.size() || !(seconds > 0) ||
      seconds > 1e9) {
    throw user_error("environment", "{} is \"{}\"; it takes seconds above 0", name, given);
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

}  // namespace tandem
