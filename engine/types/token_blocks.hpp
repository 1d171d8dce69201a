// engine/types/token_blocks.hpp — the fixed blocks in which gradients of weights are summed over
// tokens (EngineOptions::sequence_blocks).
//
// A row is cut into as many blocks of equal length as that says, on however many ranks. A sum over
// tokens is made block by block, of all rows, each from zero, and the blocks' sums are added as a
// balanced tree. Where ranks share rows, a rank's sum is a node of that tree, and the reduction
// adds what lies above it (ReduceArguments::tree). So the bits are the same however many ranks
// share. Any thread; what holds is the calling thread's.
#pragma once

#include <cstdint>

namespace tandem {

struct TokenBlocks {
  std::int64_t length = 0;  // tokens of a row that this rank has; 0: sums are not cut
  std::int64_t count = 1;   // blocks of those, a power of two that divides them
};

[[nodiscard]] TokenBlocks token_blocks() noexcept;

/// While one lives, sums of its thread are made so.
class TokenBlocksGuard {
 public:
  explicit TokenBlocksGuard(TokenBlocks blocks) noexcept;
  ~TokenBlocksGuard();
  TokenBlocksGuard(const TokenBlocksGuard&) = delete;
  TokenBlocksGuard& operator=(const TokenBlocksGuard&) = delete;

 private:
  TokenBlocks before_;
};

}  // namespace tandem
