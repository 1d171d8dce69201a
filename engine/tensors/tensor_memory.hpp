// engine/tensors/tensor_memory.hpp — host memory for large tensors: one range of addresses, in
// which a freed block joins its free neighbours and is used again.
//
// malloc keeps a thread's memory in heaps of 64 MiB, which cannot hold two allocations of 32 MiB; a
// freed allocation is too short for the next aligned request of its size; and small allocations
// occupy the gaps of large ones. So with activations of tens of MiB a step took up to twice the
// memory of its live tensors. Here a request takes the smallest free gap that it fits into, the
// first of equal ones. Requests below kLeastBytes, and those for which the range has no room, go to
// the previous allocator.
// Invariant: allocations are aligned to cache lines and do not overlap; their addresses depend only
// on the order and sizes of requests and frees. Freed memory stays resident, so that a step has no
// page faults for its activations. Any thread.
// Failure: that of the other allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include <c10/core/Allocator.h>

namespace tandem {

class TensorMemory final : public c10::Allocator {
 public:
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

  /// Reserves `range_bytes` of addresses, or half as many and so on if a limit forbids that; they
  /// take memory only when used. `other` outlives it.
  TensorMemory(std::size_t range_bytes, c10::Allocator& other);
  ~TensorMemory() override;
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  c10::DataPtr allocate(std::size_t bytes) override;
  /// Returns the deleter of the object that use_tensor_memory() made, for libraries that allocate
  /// without a DataPtr.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  /// Returns the bytes of the range that have been used so far.
  [[nodiscard]] std::size_t used_bytes() const;

 private:
  struct Block;  // a cache line before its tensor
  static void give_back(void* tensor);
  /// Frees memory of this allocator or of the other one.
  static void give_back_any(void* memory);

  /// Allocates in the range; returns null if there is no room.
  Block* take(std::size_t bytes);
  void free(const Block& block);
  bool make_writable(std::size_t end);

  c10::Allocator& other_;
  std::byte* range_ = nullptr;
  std::size_t range_bytes_ = 0;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;                     // the end of the last block so far
  std::size_t writable_ = 0;                 // of the range, from its begin
  std::map<std::size_t, std::size_t> gaps_;  // [begin] free bytes; no two gaps touch
};

/// Makes ATen allocate this process's large tensors from one TensorMemory, unless ATen already has
/// a custom allocator. Call it once.
void use_tensor_memory();

/// Returns the bytes of a freed tensor that malloc keeps, for the memory plan.
[[nodiscard]] constexpr std::int64_t kept_of_tensor(std::int64_t bytes) noexcept {
  return bytes < static_cast<std::int64_t>(TensorMemory::kLeastBytes) ? bytes : 0;
}

}  // namespace tandem
