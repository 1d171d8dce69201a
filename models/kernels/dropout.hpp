// models/kernels/dropout.hpp — dropout (Srivastava et al., 2014): chooses the dropped elements of a
// matrix, and drops them.
//
// Whether an element stays depends on 32 bits, a function of a key, the row and the column. The
// bits are computed again wherever they are needed: no mask is stored, and threads, vectors and
// recomputation change nothing. The key is computed from the seed, the micro-batch's number
// (Batch::number) and the position in the model, so ranks, stages and overlap change nothing
// either. u(column) and h(row) are mixed from either half of the key; mixing u ^ h gives the bits.
#pragma once

#include <cstdint>

#include "actors/kernels/dtype.hpp"

namespace tandem {

/// A model's rates in training: of the embedding's rows, of attention's probabilities, and of the
/// outputs that attention and MLP add.
struct DropoutRates {
  double embedding = 0;
  double attention = 0;
  double residual = 0;

  [[nodiscard]] bool any() const noexcept { return embedding > 0 || attention > 0 || residual > 0; }
};

/// The places in a layer at which elements are dropped; the last four are the inputs of adapters.
enum class DropPlace : std::uint8_t {
  kEmbedding,
  kAttention,
  kAttentionOut,
  kMlpOut,
  kQkvAdapters,
  kOutAdapters,
  kUpAdapters,
  kDownAdapters,
};

/// Maps the rows of a part, counted from `begin` on, to rows of the whole matrix. The part consists
/// of runs of `run` rows, and of groups of `count` runs. In the whole matrix runs begin `stride`
/// rows apart, and groups begin `step` runs apart.
struct DropRows {
  std::int64_t begin = 0;
  std::int64_t run = 0;  // 0: the part is the whole matrix
  std::int64_t count = 1;
  std::int64_t step = 1;
  std::int64_t stride = 0;
  std::int64_t first = 0;  // the first run's row in the whole matrix

  [[nodiscard]] std::int64_t of(std::int64_t row) const noexcept {
    row += begin;
    if (run == 0) {
      return row;
    }
    const std::int64_t which = row / run;
    return first + (which / count * step + which % count) * stride + row % run;
  }
};

/// The dropped elements of one matrix.
struct DropMask {
  std::uint64_t key = 0;
  std::uint32_t dropped = 0;  // dropped elements have upper 31 bits below it; 0: none is dropped
  float scale = 1.0F;         // of what stays: 1 / (1 - rate)
  DropRows rows = {};

  [[nodiscard]] bool empty() const noexcept { return dropped == 0; }
};

/// Returns the mask for `rate` in [0, 1); empty outside of training, where `micro_batch` is
/// negative.
[[nodiscard]] DropMask drop_mask(double rate, std::uint64_t seed, std::int64_t micro_batch,
                                 std::int64_t layer, DropPlace place);

/// to[r, c] = (residual[r, c] +) scale * from[r, c], or (residual[r, c] +) 0 where that is dropped;
/// fp32 inside. `to` may be `from`; `residual` may be null. Compute lane.
void drop_elements(const DropMask& mask, DType type, std::int64_t rows, std::int64_t width,
                   const void* from, const void* residual, void* to);

}  // namespace tandem
