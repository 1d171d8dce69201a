// models/layers/token_tiles.hpp — layers that take a micro-batch's tokens tile by tile, so that
// what is as wide as an MLP stands in memory for one tile and not for a whole long row.
//
// Invariant: where tiles begin depends on the number of tokens alone. Sums over tokens are made
// tile by tile, in fp32, in the tiles' order, whatever a run keeps or computes again: so bits do
// not depend on that. Up to one tile of tokens nothing is cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/layers/norm.hpp"
#include "models/layers/weights.hpp"

namespace tandem {

inline constexpr std::int64_t kTileTokens = 2048;  // part of the result

/// call(first token, number of tokens) for each tile.
template <class Call>
void for_token_tiles(std::int64_t tokens, Call call) {
  std::int64_t begin = 0;
  do {  // once where there are none
    call(begin, std::min(kTileTokens, tokens - begin));
    begin += kTileTokens;
  } while (begin < tokens);
}

/// The same layer, for rows that begin at token `begin` of those that its dropout counts.
[[nodiscard]] LinearWeights from_token(LinearWeights linear, std::int64_t begin);

/// Where an operation writes its weights' gradients tile by tile. In fp32, and where one tile is
/// all, that is the gradients themselves; 16-bit ones would be rounded with each tile, and have
/// sums in fp32 in their place, which write() rounds once.
class TiledGradients {
 public:
  explicit TiledGradients(std::int64_t tokens) : several_(tokens > kTileTokens) {}

  [[nodiscard]] JoinedWeights of(const JoinedWeights& weights);
  [[nodiscard]] LinearWeights of(const LinearWeights& linear);
  [[nodiscard]] Norm of(const Norm& norm);
  /// Of adjacent parameters, in order.
  [[nodiscard]] std::vector<Weight*> of(std::span<Weight* const> weights);
  /// Once, behind the last tile.
  void write();

  /// Bytes of the sums for `elements` weights, for the memory plan.
  [[nodiscard]] static std::int64_t bytes(DType type, std::int64_t tokens, std::int64_t elements) {
    return type != DType::kF32 && tokens > kTileTokens ? 4 * elements : 0;
  }

 private:
  struct Sums {
    JoinedWeights target;
    at::Tensor values;  // of all parts, side by side
    std::vector<std::unique_ptr<Weight>> parts;
  };

  bool several_;
  std::vector<Sums> sums_;
};

}  // namespace tandem
