#include "runtime/util/name.hpp"

#include <mutex>
#include <set>

namespace tandem {

namespace {

struct Interned {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;
};

Interned& interned() {
  static auto& all = *new Interned;  // outlives every thread that traces
  return all;
}

}  // namespace

const char* Name::intern(std::string_view text) {
  Interned& all = interned();
  const std::lock_guard lock(all.mutex);
  auto found = all.names.find(text);
  if (found == all.names.end()) {
    found = all.names.emplace(text).first;
  }
  return found->c_str();
}

std::size_t Name::made_at_run_time() {
  Interned& all = interned();
  const std::lock_guard lock(all.mutex);
  return all.names.size();
}

}  // namespace tandem
