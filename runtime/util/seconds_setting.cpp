#include "runtime/util/seconds_setting.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "runtime/util/error.hpp"

namespace tandem {

std::chrono::nanoseconds seconds_setting(const char* name, std::chrono::nanoseconds otherwise) {
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
