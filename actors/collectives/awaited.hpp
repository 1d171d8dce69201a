// actors/collectives/awaited.hpp — the ranks that a rank awaits, packed into one 64-bit word that
// ranks publish, and a search for the rank at the end of such waits.
//
// Pure. A published word may be a heartbeat period old, and may name ranks that do not exist.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/io/net.hpp"

namespace tandem {

/// Time after a deadline in which the host of the rank at fault, which knows more about that rank,
/// may name it before other hosts do.
inline constexpr Duration kDeadlineGrace = std::chrono::seconds(2);

class Awaited {
 public:
  static constexpr std::size_t kPlaces = PeerHeartbeats::kPlaces;
  /// A rank counts as silent after this number of heartbeat periods without a heartbeat.
  static constexpr int kSilentAfter = 3;

  Awaited() = default;
  explicit Awaited(std::uint64_t packed) noexcept
      : places_(std::bit_cast<std::array<std::uint16_t, kPlaces>>(packed)) {}
  explicit Awaited(const std::array<std::uint16_t, kPlaces>& words) noexcept : places_(words) {
    set_silent(false);
  }
  [[nodiscard]] std::uint64_t packed() const noexcept {
    return std::bit_cast<std::uint64_t>(places_);
  }

  /// Adds a rank, unless it is there already or all places are taken.
  void add(std::uint32_t rank) noexcept {
    for (std::size_t at = 0; at < kPlaces; ++at) {
      if (word(at) == 0) {
        places_[at] = static_cast<std::uint16_t>(places_[at] | (rank + 1));
      }
      if (word(at) == rank + 1) {
        return;
      }
    }
  }
  void add(const Awaited& other) noexcept {
    other.for_each([this](std::uint32_t rank) { add(rank); });
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t at = 0; at < kPlaces; ++at) {
      if (word(at) != 0) {
        visit(static_cast<std::uint32_t>(word(at)) - 1);
      }
    }
  }
  /// Returns the rank at `place` plus 1; 0 if the place is free. Heartbeat messages carry this
  /// word.
  [[nodiscard]] std::uint16_t word(std::size_t place) const noexcept {
    return places_[place] % PeerHeartbeats::kWordsMax;
  }

  /// Returns whether the rank that published these waits is silent; then they do not count.
  [[nodiscard]] bool is_silent() const noexcept { return (places_[0] & kSilent) != 0; }
  void set_silent(bool is) noexcept {
    places_[0] = static_cast<std::uint16_t>(is ? places_[0] | kSilent : places_[0] & ~kSilent);
  }

 private:
  static constexpr unsigned kSilent = 0x8000;
  std::array<std::uint16_t, kPlaces> places_{};
};

struct EndOfWaits {
  enum class Why : std::uint8_t {
    kWaitsForNone,
    kIsSilent,
    kCircle,  // all of the ranks wait: something that one sent another does not arrive
  };
  std::uint32_t rank = 0;
  Why why = Why::kWaitsForNone;
};

/// Follows waits from rank to rank, beginning with the wait of `waiter` for `awaited`, and returns
/// the rank at their end. `of(rank)` returns the Awaited of a rank below `world`.
template <class Of>
[[nodiscard]] EndOfWaits end_of_waits(std::uint32_t waiter, std::uint32_t awaited,
                                      std::uint32_t world, Of of) {
  std::vector<bool> seen(world);
  seen[waiter] = true;
  std::vector<std::uint32_t> left = {awaited};
  while (!left.empty()) {
    const std::uint32_t rank = left.back();
    left.pop_back();
    if (rank >= world || seen[rank]) {
      continue;
    }
    seen[rank] = true;
    const Awaited whom = of(rank);
    if (whom.is_silent()) {
      return {rank, EndOfWaits::Why::kIsSilent};
    }
    const std::size_t before = left.size();
    whom.for_each([&](std::uint32_t next) { left.push_back(next); });
    if (left.size() == before) {
      return {rank, EndOfWaits::Why::kWaitsForNone};
    }
    std::reverse(left.begin() + static_cast<std::ptrdiff_t>(before), left.end());
  }
  return {awaited, EndOfWaits::Why::kCircle};
}

}  // namespace tandem
