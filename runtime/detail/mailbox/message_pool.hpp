// runtime/detail/mailbox/message_pool.hpp — memory of messages: taken from the sending thread's
// pool, given back by any thread.
//
// A block that another thread frees goes to its owner's return list (one compare-and-swap), which
// the owner takes over whole when its own list is empty; so a steady flow between two threads
// allocates nothing. Some thousand blocks of a size are kept; the rest of a burst is given back.
// When a thread ends, a later thread takes over its pool; a pool is never destroyed. Under
// AddressSanitizer nothing is reused.
// Both functions are inline: a message's size is a constant where they are called, so that a
// message costs two looks at a list and no function call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/util/build.hpp"

namespace tandem::detail {

class MessagePool;
/// The pool of this thread; null before its first message, and when the thread ends.
extern TANDEM_NEAR_THREAD_LOCAL MessagePool* t_message_pool;

class MessagePool {
 public:
  [[nodiscard]] static void* allocate(std::size_t bytes) {
    const std::size_t size_class = class_of(bytes);
    if (!kAddressSanitizer && size_class <= kClasses) {
      if (MessagePool* const pool = t_message_pool; pool != nullptr) [[likely]] {
        List& list = pool->lists_[size_class];
        if (Block* const block = list.local; block != nullptr) [[likely]] {
          list.local = block->next;
          --list.kept;
          return block + 1;
        }
      }
    }
    return allocate_new(size_class);
  }
  /// `bytes` is the size that was given to allocate().
  static void deallocate(void* memory, std::size_t bytes) noexcept {
    Block* const block = static_cast<Block*>(memory) - 1;
    const std::size_t size_class = class_of(bytes);
    MessagePool* const pool = block->owner;
    if (size_class <= kClasses && pool != nullptr && pool == t_message_pool) [[likely]] {
      List& list = pool->lists_[size_class];
      if (list.kept < kKeptPerClass) [[likely]] {
        ++list.kept;
        block->next = list.local;
        list.local = block;
        return;
      }
    }
    deallocate_elsewhere(*block, size_class);
  }

 private:
  static constexpr std::size_t kGranule = 64;
  static constexpr std::size_t kClasses = 16;  // blocks up to 1 KiB are pooled
  // The number of blocks of a class that a pool keeps; further blocks of a burst are freed.
  static constexpr std::int32_t kKeptPerClass = 8192;

  struct alignas(16) Block {
    MessagePool* owner;  // null: not pooled
    Block* next;         // while it is in a list
  };
  struct alignas(64) List {
    std::atomic<Block*> returned{nullptr};
    std::atomic<std::int32_t> returned_count{0};
    alignas(64) Block* local = nullptr;
    // The number of blocks in `local`; a little too low if the count of returned blocks missed
    // some.
    std::int32_t kept = 0;
  };

  static constexpr std::size_t class_of(std::size_t bytes) noexcept {
    return (bytes + sizeof(Block) + kGranule - 1) / kGranule;
  }
  static void* allocate_new(std::size_t size_class);
  static void deallocate_elsewhere(Block& block, std::size_t size_class) noexcept;
  Block* take_returned(std::size_t size_class) noexcept;
  void put_from_other_thread(Block& block, std::size_t size_class) noexcept;

  std::array<List, kClasses + 1> lists_;
};

}  // namespace tandem::detail
