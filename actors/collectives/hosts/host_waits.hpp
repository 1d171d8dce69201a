// actors/collectives/hosts/host_waits.hpp — the table, shared by the ranks of one host, of the
// ranks that every rank awaits.
//
// The host's ranks are neighbours in the order of all ranks. `rank` and `world` number those of
// this host; other arguments are numbers among all ranks.
#pragma once

#include <cstdint>

#include "actors/collectives/awaited.hpp"

namespace tandem {

class HostWaits {
 public:
  virtual ~HostWaits() = default;
  [[nodiscard]] virtual std::uint32_t world() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;

  /// Publishes to this host's ranks which ranks `rank` awaits. `rank` is this rank, with its waits
  /// for other hosts (those for ranks of this host are added), or the rank with this local rank on
  /// another host, with the waits that it sent.
  virtual void say_awaited(std::uint32_t rank, Awaited awaited) noexcept = 0;
  /// Returns the ranks that any rank awaits; none if nothing is known.
  [[nodiscard]] virtual Awaited awaited(std::uint32_t rank) const noexcept = 0;
};

}  // namespace tandem
