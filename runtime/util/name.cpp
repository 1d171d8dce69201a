#include "runtime/util/name.hpp"

#include <mutex>
#include <set>

namespace tandem {

const char* Name::intern(std::string_view text) {
  static std::mutex mutex;
  // outlives every thread that traces
  static auto& names = *new std::set<std::string, std::less<>>;
  const std::lock_guard lock(mutex);
  auto found = names.find(text);
  if (found == names.end()) {
    found = names.emplace(text).first;
  }
  return found->c_str();
}

}  // namespace tandem
