// models/layers/token_tiles.hpp — lets layers compute a micro-batch's tokens tile by tile, so that
// tensors as wide as an MLP are in memory for one tile and not for a whole long row.
//
// Invariant: the beginnings of tiles depend only on the number of tokens and on token_tiles(). Sums
// over tokens are made tile by tile, in fp32, in the tiles' order, so their bits do not depend on
// what a run keeps or recomputes. Tokens that fit into one tile are not cut. If token_tiles() cuts
// rows into parts, a tile lies in one of these parts, and the parts' sums are added as a balanced
// tree.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/types/token_tiles.hpp"
#include "models/layers/norm.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

inline constexpr std::int64_t kTileTokens = 2048;  // part of the result

/// Calls call(first token, number of tokens) for each tile of [begin, end), and once if there are
/// no tokens.
template <class Call>
void for_tiles_between(std::int64_t begin, std::int64_t end, Call call) {
  do {
    call(begin, std::min(kTileTokens, end - begin));
    begin += kTileTokens;
  } while (begin < end);
}

/// Calls call(first token, number of tokens) for each tile, and tile_ends() after a block's last
/// tile.
template <class Call, class TileEnds>
void for_token_tiles(std::int64_t tokens, Call call, TileEnds tile_ends) {
  const TokenTiles blocks = token_tiles();
  if (blocks.length == 0) {
    for_tiles_between(0, tokens, call);
    tile_ends();
    return;
  }
  const std::int64_t block = blocks.length / blocks.count;
  for (std::int64_t b = 0; b < blocks.count; ++b) {
    for (std::int64_t row = 0; row < tokens; row += blocks.length) {
      for_tiles_between(row + b * block, row + (b + 1) * block, call);
    }
    tile_ends();
  }
}

template <class Call>
void for_token_tiles(std::int64_t tokens, Call call) {
  for_token_tiles(tokens, call, [] {});
}

/// Returns the same layer for rows that begin at token `begin` of the tokens that its dropout
/// counts.
[[nodiscard]] LinearWeights from_token(LinearWeights linear, std::int64_t begin);

/// The places to which an operation writes its weights' gradients tile by tile. These are the
/// gradients themselves in fp32, and if there is only one tile. 16-bit gradients would be rounded
/// with each tile, so fp32 sums stand in their place, which write() rounds once. If there are
/// several blocks, each of them has such sums.
class TiledGradients {
 public:
  explicit TiledGradients(std::int64_t tokens)
      : TiledGradients(tokens, tokens > kTileTokens || token_tiles().length > 0,
                       token_tiles().count) {}
  /// The caller cuts the sums into `blocks` blocks by tile_ends().
  TiledGradients(std::int64_t tokens, bool several, std::int64_t blocks)
      : tokens_(tokens), several_(several), blocks_(blocks) {}

  /// for_token_tiles() of the tokens.
  template <class Call>
  void for_tiles(Call call) {
    for_token_tiles(tokens_, call, [this] { tile_ends(); });
  }
  /// Ends a block: later tiles belong to the next one.
  void tile_ends();

  [[nodiscard]] JoinedWeights of(const JoinedWeights& weights);
  [[nodiscard]] LinearWeights of(const LinearWeights& linear);
  [[nodiscard]] Norm of(const Norm& norm);
  /// The same for adjacent parameters, in order.
  [[nodiscard]] std::vector<Weight*> of(std::span<Weight* const> weights);
  /// Writes the sums into the gradients. Call it once, after the last tile.
  void write();

  /// Returns the bytes of the sums for `elements` weights, for the memory plan; `blocks`:
  /// BatchShape's, 0: sums are not cut.
  [[nodiscard]] static std::int64_t bytes(DType type, std::int64_t tokens, std::int64_t elements,
                                          std::int64_t blocks) {
    // With several blocks there are the current sum, and one for each level of the tree.
    const std::int64_t copies = blocks > 1 ? std::bit_width(static_cast<std::uint64_t>(blocks))
                                : type != DType::kF32 && (tokens > kTileTokens || blocks == 1) ? 1
                                                                                               : 0;
    return copies * 4 * elements;
  }

 private:
  struct Sums {
    JoinedWeights target;
    at::Tensor values;  // of all parts, side by side
    std::vector<std::unique_ptr<Weight>> parts;
    std::vector<at::Tensor> done = {};  // nodes of the tree, the largest first
    at::Tensor spare = {};              // memory of a node that was added
  };
  static void point_parts_at(Sums& sums);

  std::int64_t tokens_;
  bool several_;
  std::int64_t blocks_;
  std::int64_t ended_ = 0;  // blocks
  std::vector<Sums> sums_;
};

}  // namespace tandem
