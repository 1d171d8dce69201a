// actors/collectives/shm/shm_arena.hpp — memory of one rank that the other processes of this host
// can read: a memfd, and a bump allocator over it.
//
// The address space is reserved at once and large; pages come with the first touch. A memfd has no
// name in any file system, so nothing is left behind however a process ends. A peer maps it
// read-only and finds whatever lies in it by its offset. It is sealed: its length stays, and where
// the kernel can (5.1), the descriptor makes no second writable mapping, whichever process holds
// it. Ranks that are threads of one process share the owner's own mapping.
// Invariant: what allocate() lent stays where it is and is never lent again. Any thread, one at a
// time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tandem {

/// A mapping of an arena; unmapped when the last of its holders is gone.
class ShmMapping {
 public:
  using Token = std::array<std::uint64_t, 2>;  // random, of one arena

  /// Takes over `data`.
  ShmMapping(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}
  ~ShmMapping();
  ShmMapping(const ShmMapping&) = delete;
  ShmMapping& operator=(const ShmMapping&) = delete;

  /// Maps a peer's memory, read-only; the descriptor stays the caller's. Throws Error(kPeer) when
  /// it is not the memory that was promised, or when the peer could still shorten it.
  [[nodiscard]] static std::shared_ptr<ShmMapping> of_peer(int descriptor, std::size_t bytes,
                                                           const Token& token);

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool contains(const std::byte* begin, std::size_t bytes) const noexcept {
    // As numbers: `begin` may point anywhere.
    const auto at = reinterpret_cast<std::uintptr_t>(begin);
    const auto first = reinterpret_cast<std::uintptr_t>(data_);
    return at >= first && at - first <= bytes_ && bytes <= bytes_ - (at - first);
  }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

class ShmArena {
 public:
  /// `bytes` of address space, rounded up to pages. Throws Error(kRefused) where there is no memory
  /// for it.
  explicit ShmArena(std::size_t bytes);
  ~ShmArena();
  ShmArena(const ShmArena&) = delete;
  ShmArena& operator=(const ShmArena&) = delete;

  /// Zeroed, page aligned; 2 MiB and more on boundaries of huge pages. Throws Error(kRefused) when
  /// the arena is used up.
  [[nodiscard]] std::byte* allocate(std::size_t bytes);

  [[nodiscard]] const ShmMapping& mapping() const noexcept { return *mapping_; }
  [[nodiscard]] const std::shared_ptr<ShmMapping>& shared_mapping() const noexcept {
    return mapping_;
  }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const ShmMapping::Token& token() const noexcept { return token_; }
  /// When every peer has its mapping.
  void close_descriptor() noexcept;

 private:
  std::shared_ptr<ShmMapping> mapping_;
  std::size_t used_ = 0;
  int descriptor_ = -1;
  ShmMapping::Token token_{};
};

}  // namespace tandem
