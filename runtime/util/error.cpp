#include "runtime/util/error.hpp"

#include <fmt/format.h>

namespace tandem::detail {

Error formatted_error(ExitCode code, ErrorCategory category, std::string_view where,
                      fmt::string_view what, fmt::format_args arguments) {
  return {code, fmt::format("[{}] {}", where, fmt::vformat(what, arguments)), category};
}

}  // namespace tandem::detail
