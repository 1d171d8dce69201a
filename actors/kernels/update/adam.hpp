// actors/kernels/update/adam.hpp — one fused pass of Adam / AdamW over a range of elements.
//
// gradient -> times gradient_scale -> moments and fp32 master in place -> model weight; gradient
// and weight are fp32, bf16 or fp16. One pass, because the update is bound by memory: separate
// unscale, clip and cast passes cost half as much again.
//
// Formulas, per element (Kingma & Ba 2015; Loshchilov & Hutter 2019; the operations in the order of
// DeepSpeed's CPUAdam); (1 - beta2) * g comes first, as g * g may overflow where v' does not:
//
//   g  = gradient * gradient_scale                              [L2 mode: + weight_decay * p]
//   m' = beta1 * m + (1 - beta1) * g
//   v' = beta2 * v + ((1 - beta2) * g) * g
//   u  = lr / (1 - beta1^t) * (m' / (sqrt(v') / sqrt(1 - beta2^t) + eps))
//   p' = p - (u                                                 [AdamW: + lr * weight_decay * p])
//
// Invariant: same bits for every SIMD target, thread count, chunking and alignment. Each element
// takes the same IEEE operations wherever it stands: multiply, add, divide, square root, each
// rounded once. There is no fused multiply-add: it is missing on SSE4 and emulated targets, it buys
// no speed (memory and the divider are the limits) and its gain in accuracy is far below what fp32
// state costs anyway. Denormals are kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/kernels/dtype.hpp"

namespace tandem {

struct AdamConfig {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool adamw = true;  // decoupled weight decay; false: L2, added to the gradient
  bool bias_correction = true;
};

/// The constants of one step, computed in double and rounded once.
struct AdamStep {
  float gradient_scale = 1.0F;
  float beta1 = 0.0F;
  float one_minus_beta1 = 0.0F;
  float beta2 = 0.0F;
  float one_minus_beta2 = 0.0F;
  float eps = 0.0F;
  float step_size = 0.0F;          // lr / (1 - beta1^t)
  float inverse_root_bias = 0.0F;  // 1 / sqrt(1 - beta2^t)
  float decay = 0.0F;              // AdamW: lr * weight_decay; L2: weight_decay
  bool adamw = true;

  /// `step` counts from 1; `gradient_scale` is unscale x clip.
  static AdamStep make(const AdamConfig& config, std::int64_t step, double gradient_scale);

  bool operator==(const AdamStep& o) const {
    return gradient_scale == o.gradient_scale && beta1 == o.beta1 &&
           one_minus_beta1 == o.one_minus_beta1 && beta2 == o.beta2 &&
           one_minus_beta2 == o.one_minus_beta2 && eps == o.eps && step_size == o.step_size &&
           inverse_root_bias == o.inverse_root_bias && decay == o.decay && adamw == o.adamw;
  }
};

/// Arrays of one unit's shard; the kernel touches only the elements of the range it is given. None
/// may overlap.
struct AdamBuffers {
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const void* gradient = nullptr;
  DType gradient_type = DType::kF32;
  void* weight = nullptr;  // the model weight: the new master, rounded to nearest even; null: none
  DType weight_type = DType::kF32;
};

/// Updates the elements [begin, end). Any thread; disjoint ranges may run at the same time,
/// neighbours included. The written weights may be read by another thread after the usual hand-over
/// (non-temporal stores are fenced here).
void adam_update(const AdamStep& step, const AdamBuffers& buffers, std::size_t begin,
                 std::size_t end);

}  // namespace tandem
