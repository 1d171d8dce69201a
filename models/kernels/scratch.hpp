// models/kernels/scratch.hpp — working memory of one thread that grows to the largest request and
// stays.
#pragma once

#include <cstddef>
#include <new>

#include <hwy/aligned_allocator.h>

namespace tandem {

/// Use it as `thread_local`: after the first step of a run nothing is allocated any more.
class Scratch {
 public:
  /// Returns at least `count` uninitialised elements, aligned to cache lines; valid until the next
  /// call.
  template <class T>
  T* get(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > size_bytes_) {
      memory_.reset();  // never both at once
      size_bytes_ = 0;
      memory_ = hwy::AllocateAligned<std::byte>(bytes);
      if (memory_ == nullptr) {
        throw std::bad_alloc();
      }
      size_bytes_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  hwy::AlignedFreeUniquePtr<std::byte[]> memory_;
  std::size_t size_bytes_ = 0;
};

}  // namespace tandem
