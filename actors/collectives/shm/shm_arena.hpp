// actors/collectives/shm/shm_arena.hpp — memory of one rank that its peers on this host can read: a
// memfd with a bump allocator.
//
// A large range of addresses is reserved at once; pages are allocated when they are first touched.
// A memfd has no name in any file system, so nothing is left behind when a process ends. A peer
// maps it read-only and finds data in it by offset. It is sealed: its length is fixed, and with
// kernel 5.1 or later no process can make a second writable mapping from the descriptor. Ranks that
// are threads of one process share the owner's mapping.
// Invariant: allocated memory stays at its address and is never freed. Any thread, one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace tandem {

/// A mapping of an arena; unmapped when its last owner is destroyed.
class ShmMapping {
 public:
  using Token = std::array<std::uint64_t, 2>;  // random, of one arena

  /// Takes over `data`.
  ShmMapping(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}
  ~ShmMapping();
  ShmMapping(const ShmMapping&) = delete;
  ShmMapping& operator=(const ShmMapping&) = delete;

  /// Maps a peer's memory read-only; the caller keeps the descriptor. Throws Error(kPeer) if the
  /// descriptor is not the announced memory, or if the peer could still shorten it.
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
  /// Reserves `bytes` of address space, rounded up to pages. Throws Error(kRefused) if the system
  /// refuses.
  explicit ShmArena(std::size_t bytes);
  ~ShmArena();
  ShmArena(const ShmArena&) = delete;
  ShmArena& operator=(const ShmArena&) = delete;

  /// Allocates zeroed, page-aligned memory; 2 MiB and more are aligned to huge pages. Throws
  /// Error(kRefused) if the arena is full.
  [[nodiscard]] std::byte* allocate(std::size_t bytes);

  [[nodiscard]] const ShmMapping& mapping() const noexcept { return *mapping_; }
  [[nodiscard]] const std::shared_ptr<ShmMapping>& shared_mapping() const noexcept {
    return mapping_;
  }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const ShmMapping::Token& token() const noexcept { return token_; }
  /// Call it when every peer has mapped the arena.
  void close_descriptor() noexcept;

 private:
  std::shared_ptr<ShmMapping> mapping_;
  std::size_t used_ = 0;
  int descriptor_ = -1;
  ShmMapping::Token token_{};
};

}  // namespace tandem
