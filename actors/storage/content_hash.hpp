// actors/storage/content_hash.hpp — XXH3-128 of bytes: detects accidental changes by a disk or a
// copy. It does not protect against deliberate changes.
//
//   ContentHasher hasher;
//   hasher.add(bytes);
//   std::string digits = hasher.result().text();  // as `xxhsum -H2` prints it
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// NOLINTNEXTLINE(bugprone-reserved-identifier): xxHash's own name of its state
struct XXH3_state_s;

namespace tandem {

struct ContentHash {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  bool operator==(const ContentHash&) const = default;
  /// Returns 32 hex digits in lower case.
  [[nodiscard]] std::string text() const;
  /// Returns the hash of such a text; nullopt for any other text.
  [[nodiscard]] static std::optional<ContentHash> parse(std::string_view text) noexcept;
};

/// Takes bytes in any pieces. One thread at a time.
class ContentHasher {
 public:
  ContentHasher();
  void add(std::span<const std::byte> bytes) noexcept;
  /// Returns the hash of all bytes added since the start or the last reset().
  [[nodiscard]] ContentHash result() const noexcept;
  void reset() noexcept;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace tandem
