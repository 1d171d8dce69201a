// actors/memory/arena.hpp — host memory for shards, slots, accumulators and optimizer state.
//
// Each buffer is one mapping, which is page aligned (so any SIMD or DMA alignment holds) and
// zero-filled by the kernel on first touch. The kernel is advised to use huge pages for large
// buffers: the update kernels walk five arrays at once, and with 4 KiB pages their TLB misses cost
// 8 % of the time.
// Invariant: data() keeps its address and, if it has memory, is readable and writable until the
// buffer is destroyed.
#pragma once

#include <cstddef>
#include <span>

namespace tandem {

class HostBuffer {
 public:
  struct Options {
    bool huge_pages = true;  // advice only; ignored where the system has none
    bool has_memory = true;  // false: only addresses; a read or write there ends the program
  };

  HostBuffer() = default;

  /// Maps `bytes`; 0 is allowed and maps nothing. Throws Error(kRefused), which names the size, if
  /// the system has no memory left.
  explicit HostBuffer(std::size_t bytes) : HostBuffer(bytes, Options()) {}
  HostBuffer(std::size_t bytes, Options options);
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, bytes_}; }
  template <class T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

  /// Writes to every page of [begin, end) (bytes) so that the calling thread's memory node backs
  /// it, and later passes take no page faults. Keeps the content. Disjoint ranges may be touched
  /// from several threads.
  void touch(std::size_t begin_byte, std::size_t end_byte) const noexcept;
  void touch() const noexcept { touch(0, bytes_); }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tandem
