// runtime/util/seconds_setting.hpp — a duration out of an environment variable. Any thread.
#pragma once

#include <chrono>

namespace tandem {

/// The seconds that the variable `name` holds; `otherwise` where it is not set or empty. Throws a
/// user error for anything but a number above 0 and up to 1e9.
[[nodiscard]] std::chrono::nanoseconds seconds_setting(const char* name,
                                                       std::chrono::nanoseconds otherwise);

}  // namespace tandem
