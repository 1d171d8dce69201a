// models/gpu/row_kernels.hpp — the row operations of a transformer between its matmuls, one pass
// each, as a table of functions: C++17, for nvcc as well.
//
// row_kernels.cu fills the table for a GPU if CUDA is found. host_row_kernels.cpp fills it for the
// host: the same code (row_kernels-inl.hpp) runs one row after another, and tests compare it with
// references. All arithmetic is fp32; every sum has one order, whatever runs beside it. Each
// function returns 0, or CUDA's status if a launch failed; the number of rows must not be 0.
// Thread rule: any thread; launches go to `stream`, a cudaStream_t of the device in use on that
// thread (null for the host). The caller owns the memory behind the pointers, which is the
// device's, and keeps it until that work has ended.
#pragma once

#include <cstdint>

#include "actors/kernels/dtype.hpp"
#include "models/kernels/activation.hpp"

namespace tandem {

/// Queries, keys and values of all heads, and where attention reads them.
struct HeadRows {
  DType type = DType::kF32;
  std::int64_t rows = 0;    // tokens
  std::int64_t length = 0;  // rows of the position tables; row r has position r % length
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t head_dim = 0;  // at most kMostHeadDim
  std::int64_t rotary = 0;    // leading elements of a head that are rotated, 0 to head_dim, even
  float norm_eps = 0;
  float norm_offset = 0;                            // added to the norms' weights
  const void *q_norm = nullptr, *k_norm = nullptr;  // [head_dim]; null: no norms
  const float *cosine = nullptr, *sine = nullptr;   // [length, rotary / 2]
};

/// The destination of a weight's gradient; null: it is not wanted.
struct WeightGradient {
  void* to = nullptr;
  DType type = DType::kF32;
  bool add = false;  // to what is there
};

/// Rows divided by their root mean square (Zhang and Sennrich, 2019).
struct RmsRows {
  DType type = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;  // at most kMostNormWidth
  float eps = 0;
  float offset = 0;  // added to the weights
  const void* weight = nullptr;
};

/// Gradients of q, k and v, each [rows, its heads, head_dim].
struct HeadGradients {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
};

/// Rows of logits, and the results that are wanted of them.
struct LossRows {
  DType type = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;                // of the vocabulary
  void* logits = nullptr;                // [rows, width]; with `scale` they become their gradient
  const std::int64_t* labels = nullptr;  // [rows]
  std::int64_t ignored = -100;           // the label of a row without a loss
  const float* scale = nullptr;          // one number, the gradient's factor; null: no gradient
  float* losses = nullptr;               // [rows]
};

struct RowKernels {
  static constexpr std::int64_t kMostHeadDim = 256;
  static constexpr std::int64_t kMostNormWidth = 10240;  // whose sums a block's memory holds
  /// Rows of partial sums of the norms' gradients, fp32.
  static constexpr std::int64_t kPartials = 512;

  /// qkv: [rows, (heads + 2 kv_heads) head_dim] -> q [rows, heads head_dim] and k, v [rows,
  /// kv_heads head_dim]: q and k divided by their root mean square where there are norms, then
  /// rotated by halves (Su et al., 2021); v as it is.
  int (*heads_forward)(const HeadRows& shape, const void* qkv, void* q, void* k, void* v,
                       void* stream);
  /// Computes the gradient of qkv, and with norms the gradients of q's and k's weights. `partials`
  /// [kPartials, 2 head_dim] is working memory.
  int (*heads_backward)(const HeadRows& shape, const void* qkv, const HeadGradients& of, void* dqkv,
                        float* partials, WeightGradient q_norm, WeightGradient k_norm,
                        void* stream);
  /// x, y: [rows, width].
  int (*rms_forward)(const RmsRows& rows, const void* x, void* y, void* stream);
  /// Computes the gradient of x, plus `residual` if it is not null, and the gradient of the
  /// weights. `partials` [kPartials, width] is working memory. dx may be dy or `residual`.
  int (*rms_backward)(const RmsRows& rows, const void* x, const void* dy, const void* residual,
                      void* dx, float* partials, WeightGradient weight, void* stream);
  /// x: [rows, width * inputs_per_output(kind)] -> a: [rows, width].
  int (*activation_forward)(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                            const void* x, void* a, void* stream);
  /// Computes the gradient of x from the gradient of a; dx may be x.
  int (*activation_backward)(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                             const void* x, const void* da, void* dx, void* stream);
  /// Computes each row's cross entropy.
  int (*loss)(const LossRows& rows, void* stream);

  [[nodiscard]] static const RowKernels& of_host() noexcept;
  /// Throws Error(kRefused) if the build has no kernels for a GPU.
  [[nodiscard]] static const RowKernels& of_gpu();
};

}  // namespace tandem
