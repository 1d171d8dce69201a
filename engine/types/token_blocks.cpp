#include "engine/types/token_blocks.hpp"

namespace tandem {
namespace {

thread_local TokenBlocks current;

}  // namespace

TokenBlocks token_blocks() noexcept { return current; }

TokenBlocksGuard::TokenBlocksGuard(TokenBlocks blocks) noexcept : before_(current) {
  current = blocks;
}

TokenBlocksGuard::~TokenBlocksGuard() { current = before_; }

}  // namespace tandem
