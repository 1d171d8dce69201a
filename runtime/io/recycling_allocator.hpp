// runtime/io/recycling_allocator.hpp — memory for Asio's operations from the loop's free lists, so
// that no operation allocates.
//
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>

#include "runtime/detail/frame_recycler.hpp"

namespace tandem::detail {

template <class T>
struct RecyclingAllocator {
  using value_type = T;
  RecyclingAllocator() noexcept = default;
  template <class U>
  RecyclingAllocator(const RecyclingAllocator<U>&) noexcept {
  }  // NOLINT(google-explicit-constructor)

  T* allocate(std::size_t count) {
    static_assert(alignof(T) <= FrameRecycler::kAlignment);
    return static_cast<T*>(FrameRecycler::allocate(count * sizeof(T)));
  }
  void deallocate(T* block, std::size_t count) noexcept {
    FrameRecycler::deallocate(block, count * sizeof(T));
  }
  template <class U>
  bool operator==(const RecyclingAllocator<U>&) const noexcept {
    return true;
  }
};

}  // namespace tandem::detail
