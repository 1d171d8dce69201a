// models/kernels/attention/rows-inl.hpp — softmax of the scores of a block of queries, row by row,
// forward and backward; compiled once per SIMD target.
//
// Included after lanes-inl.hpp inside the foreach_target passes (hence no #pragma once).
#if defined(TANDEM_MODELS_KERNELS_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_MODELS_KERNELS_ROWS_INL
#undef TANDEM_MODELS_KERNELS_ROWS_INL
#else
#define TANDEM_MODELS_KERNELS_ROWS_INL
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

/// The keys of a tile that a row sees.
struct Seen {
  std::int64_t begin, end;
};
/// The state of a row's softmax over the tiles so far: the largest score, and the sum of exp(scale
/// (s - largest)).
struct RowState {
  float largest = -HUGE_VALF;
  float sum = 0;
};

/// The scores of a tile of keys, [rows][keys], and the weights, which lie in the scores' memory in
/// fp32, and beside it in another type.
template <class T>
class ScoreRows {
 public:
  ScoreRows(float* scores, T* weights, float scale, bool has_sink)
      : scores_(scores), weights_(weights), scale_(scale), has_sink_(has_sink) {}

  /// For the only tile of a row: row r's weights become the softmax of the scores that it sees
  /// (with the sink, and dropped), and zero elsewhere. Returns 1.
  template <class Drop>
  HWY_INLINE float softmax(std::int64_t r, Seen seen, std::int64_t keys, float sink,
                           RowState& state, Drop drop) {
    float* scores = scores_ + r * keys + seen.begin;
    T* weights = weights_ + r * keys + seen.begin;
    const std::int64_t count = seen.end - seen.begin;
    float largest = max_lanes(scores, count);
    if (has_sink_) {
      largest = std::max(largest, sink / scale_);
    }
    float sum = sum_lanes(count, [&](auto d, auto j) HWY_ATTR {
      const auto x = hn::Sub(hn::LoadU(d, scores + j), hn::Set(d, largest));
      const auto e = hn::Exp(d, hn::Mul(x, hn::Set(d, scale_)));
      hn::StoreU(e, d, scores + j);
      return e;
    });
    if (has_sink_) {
      sum += std::exp(sink - largest * scale_);
    }
    const float inverse = 1.0F / sum;
    for_lanes(count, [&](auto d, auto j) HWY_ATTR {
      const auto weight = hn::Mul(hn::LoadU(d, scores + j), hn::Set(d, inverse));
      store_f32(d, drop(d, j, weight), weights + j);
    });
    clear_unseen(weights_ + r * keys, seen, keys);
    state = {largest, sum};
    return 1.0F;
  }

  /// For one of several tiles: row r's weights become exp(scale (s - largest so far)) of the scores
  /// that it sees (dropped), and zero elsewhere. Returns the factor for the results of earlier
  /// tiles.
  template <class Drop>
  HWY_INLINE float weigh(std::int64_t r, Seen seen, std::int64_t keys, float sink, RowState& state,
                         Drop drop) {
    const float* scores = scores_ + r * keys + seen.begin;
    T* weights = weights_ + r * keys + seen.begin;
    const std::int64_t count = seen.end - seen.begin;
    clear_unseen(weights_ + r * keys, seen, keys);
    if (count == 0) {
      return 1.0F;
    }
    RowState now = {std::max(state.largest, max_lanes(scores, count)), state.sum};
    if (has_sink_ && state.sum == 0) {
      now.largest = std::max(now.largest, sink / scale_);
      now.sum = std::exp(sink - now.largest * scale_);
    }
    const float before = std::exp((state.largest - now.largest) * scale_);
    const float sum = sum_lanes(count, [&](auto d, auto j) HWY_ATTR {
      const auto x = hn::Sub(hn::LoadU(d, scores + j), hn::Set(d, now.largest));
      const auto e = hn::Exp(d, hn::Mul(x, hn::Set(d, scale_)));
      store_f32(d, drop(d, j, e), weights + j);
      return e;
    });
    now.sum = (state.sum == 0 ? now.sum : state.sum * before) + sum;
    state = now;
    return before;
  }

  /// Writes P = exp(scale s - log_sum), dropped, into the weights, and dS = scale P (dP - delta)
  /// from the gradient of the dropped P (`dscores`). The sum over P dP, `delta`, is the same before
  /// and after dropping.
  template <class Drop>
  HWY_INLINE void backward(std::int64_t r, Seen seen, std::int64_t keys, float log_sum, float delta,
                           float* dscores, Drop drop) {
    const float* scores = scores_ + r * keys + seen.begin;
    T* weights = weights_ + r * keys + seen.begin;
    const float* ds = dscores + r * keys + seen.begin;
    T* ds_row = dscores_row(dscores + r * keys, r, keys);
    T* ds_out = ds_row + seen.begin;
    for_lanes(seen.end - seen.begin, [&](auto d, auto j) HWY_ATTR {
      const auto s = hn::LoadU(d, scores + j);
      const auto scale = hn::Set(d, scale_);
      const auto weight = hn::Exp(d, hn::MulSub(s, scale, hn::Set(d, log_sum)));
      const auto dp = hn::Sub(drop(d, j, hn::LoadU(d, ds + j)), hn::Set(d, delta));
      const auto value = hn::Mul(hn::Mul(weight, scale), dp);
      store_f32(d, drop(d, j, weight), weights + j);
      store_f32(d, value, ds_out + j);
    });
    clear_unseen(weights_ + r * keys, seen, keys);
    clear_unseen(ds_row, seen, keys);
  }

  HWY_INLINE const T* dscores_of(const float* dscores) const {
    if constexpr (sizeof(T) == 2) {
      return reinterpret_cast<const T*>(scores_);
    } else {
      return dscores;
    }
  }

 private:
  static void clear_unseen(T* row, Seen seen, std::int64_t keys) {
    std::fill(row, row + seen.begin, T(0));
    std::fill(row + seen.end, row + keys, T(0));
  }

  /// Returns the memory of row r of dS: dP's in fp32; in a 16-bit type, packed, the memory of the
  /// scores, whose rows up to r are used up.
  HWY_INLINE T* dscores_row(float* ds, std::int64_t r, std::int64_t keys) {
    if constexpr (sizeof(T) == 2) {
      return reinterpret_cast<T*>(scores_) + r * keys;
    } else {
      return ds;
    }
  }

  float* scores_;
  T* weights_;
  float scale_;
  bool has_sink_;
};

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
