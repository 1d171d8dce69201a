// runtime/detail/mailbox/message_pool.hpp — memory of messages: taken from the sending thread's
// pool, given back by any thread.
//
// A block that another thread frees goes to its owner's return list (one compare-and-swap), which
// the owner takes over whole when its own list is empty; so a steady flow between two threads
// allocates nothing. Some thousand blocks of a size are kept; the rest of a burst is given back. A
// thread's pool passes to a later thread when it ends, and is never destroyed. Under
// AddressSanitizer nothing is reused.
#pragma once

#include <cstddef>

namespace tandem::detail {

class MessagePool {
 public:
  [[nodiscard]] static void* allocate(std::size_t bytes);
  static void deallocate(void* block) noexcept;
};

}  // namespace tandem::detail
