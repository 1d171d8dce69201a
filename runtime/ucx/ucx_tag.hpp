// runtime/ucx/ucx_tag.hpp — the fields of a message's tag: key of the run, sender, kind, and a
// value such as the channel.
//
// All messages except frames consist of the tag alone, without bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/io/net.hpp"

namespace tandem::detail {

struct UcxTag {
  enum class Kind : std::uint8_t {
    kFrame,      // value: the channel
    kCredit,     // value: the channel on which half a window of frames was taken
    kHello,      // value: the sender's window
    kBye,        // the last message
    kAbort,      // value: the failed rank (the largest value: not known); the last message
    kHeartbeat,  // value: place and word, as heartbeat_value() packs them
  };
  static constexpr std::uint32_t kRanksMax = 1U << 12;
  static constexpr std::uint32_t kValuesMax = 1U << 16;

  std::uint32_t key = 0;
  std::uint32_t sender = 0;
  Kind kind = Kind::kFrame;
  std::uint32_t value = 0;

  [[nodiscard]] constexpr std::uint64_t packed() const noexcept {
    return std::uint64_t{key} << 32 | std::uint64_t{sender} << 20 |
           static_cast<std::uint64_t>(kind) << 16 | value;
  }
  static constexpr std::uint32_t heartbeat_value(std::size_t place, std::uint16_t word) noexcept {
    return static_cast<std::uint32_t>(place) * PeerHeartbeats::kWordsMax + word;
  }
  static_assert(PeerHeartbeats::kPlaces * PeerHeartbeats::kWordsMax <= kValuesMax);

  static constexpr UcxTag unpack(std::uint64_t tag) noexcept {
    return {.key = static_cast<std::uint32_t>(tag >> 32),
            .sender = static_cast<std::uint32_t>(tag >> 20) % kRanksMax,
            .kind = static_cast<Kind>(tag >> 16 & 0xF),
            .value = static_cast<std::uint32_t>(tag) % kValuesMax};
  }
};

}  // namespace tandem::detail
