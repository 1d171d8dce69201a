#include "runtime/detail/frame_recycler.hpp"

#include <new>

namespace tandem {

namespace detail {
constinit thread_local FrameRecycler* t_recycler = nullptr;
}

FrameRecycler::~FrameRecycler() {
  for (List& list : lists_) {
    while (list.head != nullptr) {
      std::free(std::exchange(list.head, list.head->next));
    }
  }
}

void* FrameRecycler::allocate_new(std::size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  return block;
}

}  // namespace tandem
