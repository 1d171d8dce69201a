// actors/collectives/hosts/host_waits.hpp — a table of the ranks that each rank awaits, shared by
// the ranks of one host.
//
// The host's ranks are neighbours in the order of all ranks. rank() and world() count the ranks of
// this host; arguments are numbers among all ranks.
#pragma once

#include <cstdint>

#include "actors/collectives/awaited.hpp"

namespace tandem {

class HostWaits {
 public:
  virtual ~HostWaits() = default;
  [[nodiscard]] virtual std::uint32_t world() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;

  /// Publishes to this host's ranks which ranks `rank` awaits. If `rank` is this rank, `awaited`
  /// has its waits for other hosts, and its waits for ranks of this host are added. Otherwise
  /// `rank` is the rank with this local rank on another host, and `awaited` has the waits that it
  /// sent.
  virtual void say_awaited(std::uint32_t rank, Awaited awaited) noexcept = 0;
  /// Returns the ranks that `rank` awaits; none if they are not known.
  [[nodiscard]] virtual Awaited awaited(std::uint32_t rank) const noexcept = 0;
};

}  // namespace tandem
