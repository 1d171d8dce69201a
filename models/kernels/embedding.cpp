// models/kernels/embedding.cpp — compiled once per SIMD target (foreach_target).
//
// The gradient is computed by tokens, not by rows: rows are sorted by token first (a counting sort,
// which keeps their order), so that each row of the table has one writer and a fixed order of
// summation.
#include "models/kernels/embedding.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "models/kernels/parallel.hpp"
#include "models/kernels/scratch.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "models/kernels/embedding.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "actors/kernels/vector-inl.hpp"
#include "models/kernels/lanes-inl.hpp"

#ifndef TANDEM_EMBEDDING_SHARED
#define TANDEM_EMBEDDING_SHARED
namespace tandem {
namespace {
thread_local Scratch sum_scratch;

/// Rows sorted by token, with the boundaries between the tokens that occur.
struct RowsByToken {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> boundaries;  // of the groups within `rows`

  explicit RowsByToken(const EmbeddingRows& e) : rows(static_cast<std::size_t>(e.rows)) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r] = static_cast<std::int64_t>(r);
    }
    std::ranges::stable_sort(rows, {}, [&](std::int64_t r) { return e.tokens[r]; });
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i == 0 || e.tokens[rows[i]] != e.tokens[rows[i - 1]]) {
        boundaries.push_back(static_cast<std::int64_t>(i));
      }
    }
    boundaries.push_back(static_cast<std::int64_t>(rows.size()));
  }
};
}  // namespace
}  // namespace tandem
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::HWY_NAMESPACE {

template <class T>
void gather(const EmbeddingRows& e, const T* table, const T* positions, const RowPositions& place,
            T* out) {
  parallel_blocks(e.rows, 64, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* from = table + e.tokens[r] * e.width;
      T* to = out + r * e.width;
      if (positions == nullptr && e.scale == 1.0F) {
        std::memcpy(to, from, static_cast<std::size_t>(e.width) * sizeof(T));
        continue;
      }
      const T* position = positions == nullptr ? nullptr : positions + place(r) * e.width;
      for_lanes(e.width, [&](auto d, auto i) HWY_ATTR {
        auto value = hn::Mul(load_f32(d, from + i), hn::Set(d, e.scale));
        if (position != nullptr) {
          value = hn::Add(value, load_f32(d, position + i));
        }
        store_f32(d, value, to + i);
      });
    }
  });
}

/// to = (add ? to : 0) + sum over rows(i), i in [begin, end), of scale * dy[row].
template <class T, class RowOf>
HWY_INLINE void sum_rows(std::int64_t width, const T* dy, float scale, std::int64_t begin,
                         std::int64_t end, RowOf row_of, bool add, T* to) {
  auto* sum = sum_scratch.get<float>(static_cast<std::size_t>(width));
  for_lanes(width, [&](auto d, auto i) HWY_ATTR {
    hn::StoreU(add ? load_f32(d, to + i) : hn::Zero(d), d, sum + i);
  });
  for (std::int64_t k = begin; k < end; ++k) {
    const T* from = dy + row_of(k) * width;
    for_lanes(width, [&](auto d, auto i) HWY_ATTR {
      const auto value = hn::Mul(load_f32(d, from + i), hn::Set(d, scale));
      hn::StoreU(hn::Add(hn::LoadU(d, sum + i), value), d, sum + i);
    });
  }
  for_lanes(width, [&](auto d, auto i) HWY_ATTR { store_f32(d, hn::LoadU(d, sum + i), to + i); });
}

/// sum[0, width) = the sum over rows [begin, end) of `rows` of the blocks [first, first + count);
/// behind it is room for one more of each level. False, and nothing is written, where there are
/// none.
template <class T>
bool sum_blocks(const EmbeddingRows& e, const T* dy, const std::vector<std::int64_t>& rows,
                std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t count,
                float* sum) {
  const std::int64_t block = e.blocks.length / e.blocks.count;
  if (count == 1) {
    bool any = false;
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t r = rows[static_cast<std::size_t>(k)];
      if (r % e.blocks.length / block != first) {
        continue;
      }
      const T* from = dy + r * e.width;
      for_lanes(e.width, [&](auto d, auto i) HWY_ATTR {
        const auto value = hn::Mul(load_f32(d, from + i), hn::Set(d, e.scale));
        hn::StoreU(hn::Add(any ? hn::LoadU(d, sum + i) : hn::Zero(d), value), d, sum + i);
      });
      any = true;
    }
    return any;
  }
  float* const other = sum + e.width;
  const bool low = sum_blocks(e, dy, rows, begin, end, first, count / 2, sum);
  const bool high =
      sum_blocks(e, dy, rows, begin, end, first + count / 2, count / 2, low ? other : sum);
  if (low && high) {
    for_lanes(e.width, [&](auto d, auto i) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::LoadU(d, other + i)), d, sum + i);
    });
  }
  return low || high;
}

/// to = (add ? to : 0) + the sum over rows [begin, end) of `rows`, as e.blocks says.
template <class T>
void sum_cut_rows(const EmbeddingRows& e, const T* dy, const std::vector<std::int64_t>& rows,
                  std::int64_t begin, std::int64_t end, bool add, T* to) {
  const auto levels =
      static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(e.blocks.count)));
  auto* sum = sum_scratch.get<float>(static_cast<std::size_t>(e.width * levels));
  (void)sum_blocks(e, dy, rows, begin, end, 0, e.blocks.count, sum);
  for_lanes(e.width, [&](auto d, auto i) HWY_ATTR {
    auto value = hn::LoadU(d, sum + i);
    if (add) {
      value = hn::Add(value, load_f32(d, to + i));
    }
    store_f32(d, value, to + i);
  });
}

template <class T>
void scatter(const EmbeddingRows& e, const T* dy, std::int64_t skip, bool add, T* gradient) {
  if (!add) {
    parallel_blocks(e.entries, 256, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
      std::memset(gradient + begin * e.width, 0,
                  static_cast<std::size_t>((end - begin) * e.width) * sizeof(T));
    });
  }
  const RowsByToken sorted(e);
  const auto groups = static_cast<std::int64_t>(sorted.boundaries.size()) - 1;
  parallel_blocks(groups, 32, [&](std::int64_t first, std::int64_t last) HWY_ATTR {
    for (std::int64_t g = first; g < last; ++g) {
      const std::int64_t begin = sorted.boundaries[g];
      const std::int64_t token = e.tokens[sorted.rows[begin]];
      if (token == skip) {
        continue;
      }
      if (e.blocks.length > 0) {
        sum_cut_rows(e, dy, sorted.rows, begin, sorted.boundaries[g + 1], add,
                     gradient + token * e.width);
      } else {
        sum_rows(
            e.width, dy, e.scale, begin, sorted.boundaries[g + 1],
            [&](std::int64_t k) { return sorted.rows[k]; }, add, gradient + token * e.width);
      }
    }
  });
}

template <class T>
void scatter_positions(const EmbeddingRows& e, const T* dy, std::int64_t length, bool add,
                       T* gradient) {
  const std::int64_t batch = e.rows / length;
  parallel_tasks(e.entries, [&](std::int64_t p) HWY_ATTR {
    T* to = gradient + p * e.width;
    if (p < length) {
      sum_rows(
          e.width, dy, 1.0F, 0, batch, [&](std::int64_t b) { return b * length + p; }, add, to);
    } else if (!add) {
      std::memset(to, 0, static_cast<std::size_t>(e.width) * sizeof(T));
    }
  });
}

template <class T>
void scale_into_typed(std::int64_t count, const float* source, float scale, bool add, T* target) {
  parallel_blocks(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const float* from = source + begin;
    T* to = target + begin;
    for_lanes(end - begin, [&](auto d, auto i) HWY_ATTR {
      auto value = hn::Mul(hn::LoadU(d, from + i), hn::Set(d, scale));
      if (add) {
        value = hn::Add(value, load_f32(d, to + i));
      }
      store_f32(d, value, to + i);
    });
  });
}

template <class T>
void scale_in_place_typed(std::int64_t count, float scale, T* target) {
  parallel_blocks(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    T* to = target + begin;
    for_lanes(end - begin, [&](auto d, auto i) HWY_ATTR {
      store_f32(d, hn::Mul(load_f32(d, to + i), hn::Set(d, scale)), to + i);
    });
  });
}

void EmbeddingForward(const EmbeddingRows& e, const void* table, const void* positions,
                      const RowPositions& place, void* out) {
  with_element(e.type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    gather(e, static_cast<const T*>(table), static_cast<const T*>(positions), place,
           static_cast<T*>(out));
  });
}

void EmbeddingBackward(const EmbeddingRows& e, const void* dy, std::int64_t skip, bool add,
                       void* gradient) {
  with_element(e.type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    scatter(e, static_cast<const T*>(dy), skip, add, static_cast<T*>(gradient));
  });
}

void PositionBackward(const EmbeddingRows& e, const void* dy, std::int64_t length, bool add,
                      void* gradient) {
  with_element(e.type, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    scatter_positions(e, static_cast<const T*>(dy), length, add, static_cast<T*>(gradient));
  });
}

void ScaleInto(DType type, std::int64_t count, const float* source, float scale, bool add,
               void* target) {
  with_element(type, [&](auto element) HWY_ATTR {
    scale_into_typed(count, source, scale, add, static_cast<decltype(element)*>(target));
  });
}

void ScaleInPlace(DType type, std::int64_t count, float scale, void* target) {
  with_element(type, [&](auto element) HWY_ATTR {
    scale_in_place_typed(count, scale, static_cast<decltype(element)*>(target));
  });
}

}  // namespace tandem::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem {
HWY_EXPORT(EmbeddingForward);
HWY_EXPORT(EmbeddingBackward);
HWY_EXPORT(PositionBackward);
HWY_EXPORT(ScaleInto);
HWY_EXPORT(ScaleInPlace);

void embedding_forward(const EmbeddingRows& e, const void* table, const void* positions,
                       const RowPositions& place, void* out) {
  HWY_DYNAMIC_DISPATCH(EmbeddingForward)(e, table, positions, place, out);
}
void embedding_backward(const EmbeddingRows& e, const void* dy, std::int64_t skip, bool add,
                        void* gradient) {
  HWY_DYNAMIC_DISPATCH(EmbeddingBackward)(e, dy, skip, add, gradient);
}
void position_backward(const EmbeddingRows& e, const void* dy, std::int64_t length, bool add,
                       void* gradient) {
  HWY_DYNAMIC_DISPATCH(PositionBackward)(e, dy, length, add, gradient);
}
void scale_into(DType type, std::int64_t count, const float* source, float scale, bool add,
                void* target) {
  HWY_DYNAMIC_DISPATCH(ScaleInto)(type, count, source, scale, add, target);
}
void scale_in_place(DType type, std::int64_t count, float scale, void* target) {
  HWY_DYNAMIC_DISPATCH(ScaleInPlace)(type, count, scale, target);
}
}  // namespace tandem
#endif
