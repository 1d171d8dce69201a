// actors/collectives/hosts/host_waits.hpp — what the ranks of one host know together of whom every
// rank waits for.
//
// Its ranks are neighbours in the order of all ranks; `rank` and `world` count those of this host,
// the others are numbers among all.
#pragma once

#include <cstdint>

#include "actors/collectives/awaited.hpp"

namespace tandem {

class HostWaits {
 public:
  virtual ~HostWaits() = default;
  [[nodiscard]] virtual std::uint32_t world() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;

  /// What is known of whom `rank` waits for: of this rank itself its waits for other hosts (those
  /// for ranks of this host are added), or of one of another host with this local rank what it
  /// says. All ranks of this host learn of it.
  virtual void say_awaited(std::uint32_t rank, Awaited awaited) noexcept = 0;
  /// Of any rank; none, where nothing is known.
  [[nodiscard]] virtual Awaited awaited(std::uint32_t rank) const noexcept = 0;
};

}  // namespace tandem
