// runtime/util/seconds_setting.hpp — reads a duration from an environment variable. Any thread.
#pragma once

#include <chrono>

namespace tandem {

/// Returns the seconds that the variable `name` holds; `otherwise` if it is not set or empty.
/// Throws a user error for anything but a number above 0 and up to 1e9.
[[nodiscard]] std::chrono::nanoseconds seconds_setting(const char* name,
                                                       std::chrono::nanoseconds otherwise);

}  // namespace tandem
