#include "runtime/detail/frame_recycler.hpp"

#include <cstdint>
#include <new>

#include "runtime/util/round_up.hpp"

namespace tandem {

namespace detail {
TANDEM_NEAR_THREAD_LOCAL FrameRecycler* t_recycler = nullptr;
}

FrameRecycler::~FrameRecycler() {
  for (List& list : lists_) {
    while (list.head != nullptr) {
      std::free(std::exchange(list.head, list.head->next));
    }
  }
}

void* FrameRecycler::allocate_new(std::size_t bytes) {
  return allocate_aligned(bytes, std::align_val_t(kAlignment));
}

// A block of its size class at least, so that any frame of the class may have it later.
void* FrameRecycler::allocate_wide(std::size_t bytes, std::align_val_t alignment) {
  const std::size_t index = (bytes + kGranule - 1) / kGranule;
  if (FrameRecycler* recycler = detail::t_recycler;
      kReuse && recycler != nullptr && index <= kClasses) {
    List& list = recycler->lists_[index];
    const auto address = reinterpret_cast<std::uintptr_t>(list.head);
    if (list.head != nullptr && address % static_cast<std::size_t>(alignment) == 0) {
      --list.count;
      return std::exchange(list.head, list.head->next);
    }
  }
  return allocate_aligned(bytes, alignment);
}

void* FrameRecycler::allocate_aligned(std::size_t bytes, std::align_val_t alignment) {
  void* block = std::aligned_alloc(static_cast<std::size_t>(alignment),
                                   round_up(bytes, static_cast<std::size_t>(alignment)));
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  return block;
}

}  // namespace tandem
