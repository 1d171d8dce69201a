// engine/types/token_tiles.hpp — the fixed token tiles over which gradients of weights are summed
// (EngineOptions::sequence_blocks).
//
// A row is cut into that number of tiles of equal length, for any number of ranks. A sum over
// tokens is made tile by tile, over all rows, each from zero, and the tiles' sums are added as a
// balanced tree. If ranks share rows, a rank's sum is a node of that tree, and the reduction adds
// the nodes above (ReduceArguments::tree). So the bits do not depend on the number of ranks. Any
// thread; the setting is the calling thread's.
#pragma once

#include <cstdint>

namespace tandem {

struct TokenTiles {
  std::int64_t length = 0;  // tokens of a row that this rank has; 0: sums are not cut
  std::int64_t count = 1;   // tiles of these, a power of two that divides them
};

[[nodiscard]] TokenTiles token_tiles() noexcept;

/// While one lives, its thread sums in tiles.
class TokenTilesGuard {
 public:
  explicit TokenTilesGuard(TokenTiles blocks) noexcept;
  ~TokenTilesGuard();
  TokenTilesGuard(const TokenTilesGuard&) = delete;
  TokenTilesGuard& operator=(const TokenTilesGuard&) = delete;

 private:
  TokenTiles before_;
};

}  // namespace tandem
