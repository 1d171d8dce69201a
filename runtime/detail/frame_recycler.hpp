// runtime/detail/frame_recycler.hpp — free lists for coroutine frames, by size class, one set per
// event loop.
//
// A frame is taken from, and given back to, the recycler of the loop that runs on this thread;
// without one it comes from malloc. All memory comes from malloc with the size of its class, so a
// frame may be returned to another loop's recycler. In sanitizer builds nothing is reused, and in
// debug builds a freed frame is overwritten, so that a later use of it shows at once. Every block
// is aligned to kAlignment, which the widest SIMD variables need; a frame that needs more takes the
// block that was given back last, if its alignment suffices, or a new block.
// Thread rule: the loop's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "runtime/util/build.hpp"

namespace tandem {

class FrameRecycler;
namespace detail {
extern TANDEM_NEAR_THREAD_LOCAL FrameRecycler* t_recycler;
}

class FrameRecycler {
 public:
  static constexpr std::size_t kAlignment = 64;

  FrameRecycler() noexcept = default;
  ~FrameRecycler();
  FrameRecycler(const FrameRecycler&) = delete;
  FrameRecycler& operator=(const FrameRecycler&) = delete;

  /// Sets the recycler that this thread's frames use from now on (null: malloc), and returns the
  /// previous one.
  static FrameRecycler* install(FrameRecycler* recycler) noexcept {
    return std::exchange(detail::t_recycler, recycler);
  }

  /// For the promise types' operator new and delete. Inline: a frame's size is a constant where
  /// these are called, so that a call of a coroutine costs one look at a free list and no function
  /// call.
  static void* allocate(std::size_t bytes) {
    const std::size_t index = (bytes + kGranule - 1) / kGranule;
    if constexpr (kReuse) {
      if (FrameRecycler* recycler = detail::t_recycler; recycler != nullptr && index <= kClasses)
          [[likely]] {
        List& list = recycler->lists_[index];
        if (Block* block = list.head; block != nullptr) [[likely]] {
          list.head = block->next;
          --list.count;
          return block;
        }
      }
    }
    return allocate_new(kReuse ? index * kGranule : bytes);
  }
  /// Allocates a frame of any alignment. It is given back like all others, by its size alone.
  static void* allocate(std::size_t bytes, std::align_val_t alignment) {
    return static_cast<std::size_t>(alignment) <= kAlignment ? allocate(bytes)
                                                             : allocate_wide(bytes, alignment);
  }
  static void deallocate(void* block, std::size_t bytes) noexcept {
    if constexpr (kReuse) {
      if constexpr (kDebugChecks) {
        std::memset(block, 0xDD, bytes);
      }
      const std::size_t index = (bytes + kGranule - 1) / kGranule;
      if (FrameRecycler* recycler = detail::t_recycler; recycler != nullptr && index <= kClasses)
          [[likely]] {
        List& list = recycler->lists_[index];
        if (list.count < kKeptPerClass) [[likely]] {
          list.head = std::construct_at(static_cast<Block*>(block), list.head);
          ++list.count;
          return;
        }
      }
    }
    std::free(block);
  }

 private:
  static constexpr bool kReuse = !kAddressSanitizer && !kThreadSanitizer;
  static constexpr std::size_t kGranule = 64;
  static constexpr std::size_t kClasses = 64;          // up to 4 KiB; larger frames go to malloc
  static constexpr std::size_t kKeptPerClass = 16384;  // blocks; further ones go back to malloc

  struct Block {
    Block* next;
  };
  struct List {
    Block* head = nullptr;
    std::size_t count = 0;
  };

  static void* allocate_new(std::size_t bytes);
  static void* allocate_wide(std::size_t bytes, std::align_val_t alignment);
  static void* allocate_aligned(std::size_t bytes, std::align_val_t alignment);

  std::array<List, kClasses + 1> lists_{};
};

}  // namespace tandem
