#include "runtime/detail/frame_recycler.hpp"

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

void* FrameRecycler::allocate_aligned(std::size_t bytes, std::align_val_t alignment) {
  void* block = std::aligned_alloc(static_cast<std::size_t>(alignment),
                                   round_up(bytes, static_cast<std::size_t>(alignment)));
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  return block;
}

}  // namespace tandem
