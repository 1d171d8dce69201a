#include "runtime/system/user_cache.hpp"

#include <cstdlib>

namespace tandem {

std::filesystem::path user_cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  if (auto own = variable("TANDEM_CACHE"); !own.empty()) {
    return own;
  }
  if (const auto of_all = variable("XDG_CACHE_HOME"); of_all.is_absolute()) {
    return of_all / "tandem";
  }
  const auto home = variable("HOME");
  return home.is_absolute() ? home / ".cache" / "tandem" : "";
}

}  // namespace tandem
