#include "runtime/frame_recycler.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "runtime/util/build.hpp"

namespace tandem {
namespace {
constexpr bool kReuse = !kAddressSanitizer && !kThreadSanitizer;
constinit thread_local FrameRecycler* t_recycler = nullptr;
}  // namespace

FrameRecycler::~FrameRecycler() {
  for (List& list : lists_) {
    while (list.head != nullptr) {
      std::free(std::exchange(list.head, list.head->next));
    }
  }
}

FrameRecycler* FrameRecycler::install(FrameRecycler* recycler) noexcept {
  return std::exchange(t_recycler, recycler);
}

void* FrameRecycler::allocate(std::size_t bytes) {
  const std::size_t index = (bytes + kGranule - 1) / kGranule;
  if constexpr (kReuse) {
    if (FrameRecycler* recycler = t_recycler; recycler != nullptr && index <= kClasses) [[likely]] {
      List& list = recycler->lists_[index];
      if (Block* block = list.head; block != nullptr) [[likely]] {
        list.head = block->next;
        --list.count;
        return block;
      }
    }
  }
  void* block = std::malloc(kReuse ? index * kGranule : bytes);
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  return block;
}

void FrameRecycler::deallocate(void* block, std::size_t bytes) noexcept {
  if constexpr (kReuse) {
    if constexpr (kDebugChecks) {
      std::memset(block, 0xDD, bytes);
    }
    const std::size_t index = (bytes + kGranule - 1) / kGranule;
    if (FrameRecycler* recycler = t_recycler; recycler != nullptr && index <= kClasses) [[likely]] {
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

}  // namespace tandem
