#include "runtime/name.hpp"

#include <mutex>
#include <set>

namespace tandem {

const char* Name::intern(std::string_view text) {
  static std::mutex mutex;
  static auto& names =
      *new std::set<std::string, std::less<>>;  // outlives every thread that traces
  const std::lock_guard lock(mutex);
  auto found = names.find(text);
  if (found == names.end()) {
    found = names.emplace(text).first;
  }
  return found->c_str();
}

}  // namespace tandem
