// engine/tensors/tensor_memory.hpp — host memory for large tensors: one range of addresses, in
// which a freed block joins its free neighbours and is used again.
//
// malloc keeps blocks of a thread in heaps of 64 MiB, of which one holds no two blocks of 32 MiB; a
// block that was freed is too short for the next request of its own size, which looks for room to
// align in; and small blocks settle in the places of large ones. With activations of tens of MiB a
// step held up to twice what was alive. Here a request takes the smallest free block that it fits
// into, the first of them. Blocks below kLeastBytes, and what the range has no room for, are the
// allocator's that was there before.
// Invariant: blocks are aligned to cache lines and no two overlap; which one is taken depends on
// the order of requests and frees and on their sizes alone.
// Freed memory stays resident, so that a step takes no page faults for its activations.
// Any thread. Failure: that of the other allocator.
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

  /// `range_bytes` of addresses, or half as many and so on as far as a limit allows, without memory
  /// until they are used; `other` outlives it.
  TensorMemory(std::size_t range_bytes, c10::Allocator& other);
  ~TensorMemory() override;
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  c10::DataPtr allocate(std::size_t bytes) override;
  /// The deleter of the one that use_tensor_memory() made: libraries ask it for memory without a
  /// DataPtr.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  /// Bytes of the range in which blocks have lain so far.
  [[nodiscard]] std::size_t used_bytes() const;

 private:
  struct Block;  // a cache line before its tensor
  static void give_back(void* tensor);
  /// The same, or of the other allocator's.
  static void give_back_any(void* memory);

  /// Takes a block in the range; null: there is no room.
  Block* take(std::size_t bytes);
  void free(const Block& block);
  bool make_writable(std::size_t end);

  c10::Allocator& other_;
  std::byte* range_ = nullptr;
  std::size_t range_bytes_ = 0;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;                     // the end of the last block so far
  std::size_t writable_ = 0;                 // of the range, from its begin
  std::map<std::size_t, std::size_t> gaps_;  // [begin] bytes, of what is free; no two touch
};

/// From now on ATen's large tensors of this process lie in one TensorMemory, unless someone has
/// given ATen an allocator of theirs. Once.
void use_tensor_memory();

/// The bytes of a freed tensor's block that malloc keeps, for the memory plan.
[[nodiscard]] constexpr std::int64_t kept_of_tensor(std::int64_t bytes) noexcept {
  return bytes < static_cast<std::int64_t>(TensorMemory::kLeastBytes) ? bytes : 0;
}

}  // namespace tandem
