#include "engine/types/token_tiles.hpp"

namespace tandem {
namespace {

thread_local TokenTiles current;

}  // namespace

TokenTiles token_tiles() noexcept { return current; }

TokenTilesGuard::TokenTilesGuard(TokenTiles blocks) noexcept : before_(current) {
  current = blocks;
}

TokenTilesGuard::~TokenTilesGuard() { current = before_; }

}  // namespace tandem
