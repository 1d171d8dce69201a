// models/kernels/embedding.hpp — rows of a table by token, and the gradient back into the table.
#pragma once

#include <cstdint>

#include "actors/kernels/dtype.hpp"
#include "engine/types/token_tiles.hpp"

namespace tandem {

struct EmbeddingRows {
  DType type = DType::kF32;
  std::int64_t rows = 0;  // tokens
  std::int64_t width = 0;
  std::int64_t entries = 0;              // rows of the table
  const std::int64_t* tokens = nullptr;  // [rows], each in [0, entries)
  float scale = 1.0F;                    // of the table's rows, not of positions
  // The gradient's sums over rows: each token tile is summed from zero, and these sums as a
  // balanced tree.
  TokenTiles blocks = {};
};

/// The position that a row gets: r % length, or of[r] if there is such a list.
struct RowPositions {
  std::int64_t length = 1;
  const std::int64_t* of = nullptr;

  [[nodiscard]] std::int64_t operator()(std::int64_t r) const {
    return of == nullptr ? r % length : of[r];
  }
};

/// out[r] = scale * table[tokens[r]] (+ positions[place(r)] if given).
void embedding_forward(const EmbeddingRows& e, const void* table, const void* positions,
                       const RowPositions& place, void* out);

/// gradient[t] += sum of scale * dy[r] over the rows with tokens[r] == t (fp32 inside, in the order
/// of r), leaving out t == `skip`; the table's gradient is set to zero first unless `add`. -1 skips
/// nothing.
void embedding_backward(const EmbeddingRows& e, const void* dy, std::int64_t skip, bool add,
                        void* gradient);

/// gradient[p] (+)= sum over the batch of dy[b * length + p]; rows from `length` on are zero unless
/// `add`.
void position_backward(const EmbeddingRows& e, const void* dy, std::int64_t length, bool add,
                       void* gradient);

/// target = (add ? target : 0) + scale * source, for `count` elements; source is fp32.
void scale_into(DType type, std::int64_t count, const float* source, float scale, bool add,
                void* target);

/// target[i] *= scale, for `count` elements.
void scale_in_place(DType type, std::int64_t count, float scale, void* target);

}  // namespace tandem
