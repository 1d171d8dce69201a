#include "runtime/system/thread_id.hpp"

#include <atomic>

namespace tandem {

std::uint64_t this_thread_id() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  constinit thread_local std::uint64_t id = 0;
  if (id == 0) {
    id = last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  return id;
}

}  // namespace tandem
