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

  /// Tells all ranks of this host for whom `rank` waits. `rank` is this rank itself, with its waits
  /// for other hosts (those for ranks of this host are added), or one of another host with this
  /// local rank, with what it says.
  virtual void say_awaited(std::uint32_t rank, Awaited awaited) noexcept = 0;
  /// The wait of any rank; none, where nothing is known.
  [[nodiscard]] virtual Awaited awaited(std::uint32_t rank) const noexcept = 0;
};

}  // namespace tandem
