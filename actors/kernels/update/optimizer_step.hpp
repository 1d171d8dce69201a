// actors/kernels/update/optimizer_step.hpp — one fused pass of an optimizer over a range of
// elements: Adam, AdamW, SGD, Lion, Adagrad, and the second half of LAMB and Muon.
//
// gradient (fp32 | bf16 | fp16) -> times gradient_scale -> state and fp32 master, in place or from
// one buffer to another -> model weight (fp32 | bf16 | fp16). One pass, because the update is bound
// by memory: separate unscale, clip and cast passes cost half as much again. The pass is the same
// for all (update-inl.hpp); they differ in one rule per element:
//
//   all       g  = gradient * gradient_scale
//   Adam      g += weight_decay * p                                          [not in AdamW]
//             m' = beta1 * m + (1 - beta1) * g
//             v' = beta2 * v + ((1 - beta2) * g) * g
//             u  = lr / (1 - beta1^t) * (m' / (sqrt(v') / sqrt(1 - beta2^t) + eps))
//             p' = p - (u + lr * weight_decay * p)                           [AdamW; Adam: p - u]
//   SGD       g += weight_decay * p
//             b' = momentum * b + (1 - dampening) * g                        [first step: b' = g]
//             p' = p - lr * (nesterov ? g + momentum * b' : momentum == 0 ? g : b')
//   Lion      c  = beta1 * m + (1 - beta1) * g
//             m' = beta2 * m + (1 - beta2) * g
//             p' = p - (lr * sign(c) + lr * weight_decay * p)
//   Adagrad   g += weight_decay * p
//             v' = v + g * g
//             p' = p - lr * (g / (sqrt(v') + eps))
//   LAMB, Muon
//             p' = p - (rate * u + decay * p)
//             where u is the direction that direction.hpp has written over the gradient;
//             LAMB: rate = lr * sqrt(1 - beta2^t) / (1 - beta1^t) * trust ratio, decay = 0
//             Muon: rate = lr * clip coefficient, decay = lr * weight_decay
//
// Adam: Kingma & Ba 2015, Loshchilov & Hutter 2019; the operations in the order of DeepSpeed's
// CPUAdam; (1 - beta2) * g comes first, because g * g may overflow where v' does not. SGD: as
// torch.optim.SGD. Lion: Chen et al. 2023; sign(0) is 0, so elements without a gradient (padding,
// an embedding's unused rows) do not change. DeepSpeed's CPULion changes them by lr.
//
// Invariant: same bits for every SIMD target, thread count, chunking and alignment: each element
// takes the same IEEE operations at every position, each rounded once, none fused. There is no
// fused multiply-add: emulated targets lack it, it would not be faster (memory and the divider are
// the limits), and it would gain less accuracy than fp32 state loses. Denormals are kept, and NaN
// stays NaN. C++17, for nvcc as well, like its includes and the files up to update_pass.hpp that
// include it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/state_layout.hpp"
#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class OptimizerKind : std::uint8_t { kAdam, kSgd, kLion, kAdagrad, kLamb, kMuon };

/// Whether an element's update depends on the other elements of its tensor: then a separate pass
/// computes the direction first (direction.hpp).
[[nodiscard]] constexpr bool updates_jointly(OptimizerKind kind) noexcept {
  return kind == OptimizerKind::kLamb || kind == OptimizerKind::kMuon;
}

template <>
inline constexpr auto kEnumNames<OptimizerKind> =
    std::array{EnumName{OptimizerKind::kAdam, "Adam"}, EnumName{OptimizerKind::kSgd, "SGD"},
               EnumName{OptimizerKind::kLion, "Lion"}, EnumName{OptimizerKind::kAdagrad, "Adagrad"},
               EnumName{OptimizerKind::kLamb, "LAMB"}, EnumName{OptimizerKind::kMuon, "Muon"}};

/// One optimizer's hyperparameters; each kind reads those that its formula names.
struct UpdateConfig {
  OptimizerKind kind = OptimizerKind::kAdam;
  double lr = 1e-3;
  double beta1 = 0.9;  // Adam, Lion, LAMB
  double beta2 = 0.999;
  double eps = 1e-8;  // Adam, Adagrad, LAMB
  double weight_decay = 0.0;
  bool adamw = true;            // Adam: decoupled weight decay
  bool bias_correction = true;  // Adam, LAMB
  double momentum = 0.0;        // SGD, Muon
  double dampening = 0.0;       // SGD
  bool nesterov = false;        // SGD, Muon
  double min_coeff = 0.01;      // LAMB: bounds of the trust ratio
  double max_coeff = 10.0;
  bool eps_inside_sqrt = false;  // LAMB: sqrt(v + eps) instead of sqrt(v) + eps
  std::uint64_t seed = 0;        // of stochastic rounding, in layouts that have it
};

/// Returns the number of state arrays beside the master: Adam and LAMB 2, Lion and Adagrad 1, SGD 1
/// (0 without momentum); Muon 2, of which its matrices use the first. They start as zeros.
[[nodiscard]] std::size_t state_arrays(const UpdateConfig& config) noexcept;

// The constants of one step, computed in double and rounded once.

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

  bool operator==(const AdamStep& o) const {
    return gradient_scale == o.gradient_scale && beta1 == o.beta1 &&
           one_minus_beta1 == o.one_minus_beta1 && beta2 == o.beta2 &&
           one_minus_beta2 == o.one_minus_beta2 && eps == o.eps && step_size == o.step_size &&
           inverse_root_bias == o.inverse_root_bias && decay == o.decay && adamw == o.adamw;
  }
};

struct SgdStep {
  float gradient_scale = 1.0F;
  float lr = 0.0F;
  float momentum = 0.0F;
  float one_minus_dampening = 1.0F;
  float decay = 0.0F;
  bool first = false;  // the buffer is written, not read
  bool nesterov = false;

  bool operator==(const SgdStep& o) const {
    return gradient_scale == o.gradient_scale && lr == o.lr && momentum == o.momentum &&
           one_minus_dampening == o.one_minus_dampening && decay == o.decay && first == o.first &&
           nesterov == o.nesterov;
  }
};

struct LionStep {
  float gradient_scale = 1.0F;
  float lr = 0.0F;
  float beta1 = 0.0F;
  float one_minus_beta1 = 0.0F;
  float beta2 = 0.0F;
  float one_minus_beta2 = 0.0F;
  float decay = 0.0F;  // lr * weight_decay

  bool operator==(const LionStep& o) const {
    return gradient_scale == o.gradient_scale && lr == o.lr && beta1 == o.beta1 &&
           one_minus_beta1 == o.one_minus_beta1 && beta2 == o.beta2 &&
           one_minus_beta2 == o.one_minus_beta2 && decay == o.decay;
  }
};

struct AdagradStep {
  float gradient_scale = 1.0F;
  float lr = 0.0F;
  float eps = 0.0F;
  float decay = 0.0F;

  bool operator==(const AdagradStep& o) const {
    return gradient_scale == o.gradient_scale && lr == o.lr && eps == o.eps && decay == o.decay;
  }
};

/// A step along a direction, which has replaced the gradient in memory.
struct AlongStep {
  float rate = 0.0F;
  float decay = 0.0F;

  bool operator==(const AlongStep& o) const { return rate == o.rate && decay == o.decay; }
};

struct UpdateStep {
  // In the order of OptimizerKind; the last is that of all that update jointly.
  std::variant<AdamStep, SgdStep, LionStep, AdagradStep, AlongStep> rule;
  std::uint64_t rounding_bits = 0;  // of seed and step

  /// `step` counts applied steps from 1; `gradient_scale` is the product of unscaling and clipping;
  /// for a direction it is a factor of the learning rate (LAMB's trust ratio, Muon's clip
  /// coefficient).
  static UpdateStep make(const UpdateConfig& config, std::int64_t step, double gradient_scale);

  /// kLamb stands for Muon, too.
  [[nodiscard]] OptimizerKind kind() const noexcept {
    return static_cast<OptimizerKind>(rule.index());
  }

  bool operator==(const UpdateStep& o) const {
    return rule == o.rule && rounding_bits == o.rounding_bits;
  }
};

/// The arrays that an update reads if it does not write them; a null array is updated in place.
/// None overlaps an array of UpdateBuffers.
struct UpdateSource {
  const void* master = nullptr;
  const void* state[2] = {nullptr, nullptr};
  const std::uint8_t* scale[2] = {nullptr, nullptr};  // with their state
  const void* weight = nullptr;                       // where it is the master's upper half
};

/// Arrays of one unit's shard, each from the shard's first element on; the kernel touches only the
/// elements of the range it is given. None may overlap.
struct UpdateBuffers {
  // float; where the layout is not fp32 and there is a (bf16) weight: std::uint16_t, the weight's
  // remainder.
  void* master = nullptr;
  // The first state_arrays() of them. Adam, LAMB: exp_avg, exp_avg_sq; SGD, Muon: momentum; Lion:
  // exp_avg; Adagrad: sum of squares. float (fp32, split), bf16, or codes of 8 bits with one
  // exponent per block in `scale`.
  void* state[2] = {nullptr, nullptr};
  std::uint8_t* scale[2] = {nullptr, nullptr};
  const void* gradient = nullptr;
  DType gradient_type = DType::kF32;
  void* weight = nullptr;  // the model weight: the new master, rounded to nearest even; null: none
  DType weight_type = DType::kF32;  // a gradient of 16 bits comes with a weight of its type
  StateLayout layout = StateLayout::kFp32;
  // The first element's position in the model, on which stochastic rounding depends.
  std::uint64_t position = 0;
  UpdateSource from;  // never written: an update out of place can be dropped, or done again

  /// Whether the weight is the upper half of each master.
  [[nodiscard]] bool weight_is_half() const noexcept {
    return layout != StateLayout::kFp32 && weight != nullptr;
  }
  /// Returns the masters; null if they are split.
  [[nodiscard]] float* whole_master() const noexcept {
    return weight_is_half() ? nullptr : static_cast<float*>(master);
  }
};

/// Updates the elements [begin, end). Any thread; disjoint ranges may run at the same time, also
/// adjacent ones. Another thread may read the written weights after the usual synchronisation
/// (non-temporal stores are fenced here). kInt8: `begin` is a multiple of kScaleGroup, `end` too or
/// the shard's end (the rest of its scale group is padding).
void apply_update(const UpdateStep& step, const UpdateBuffers& buffers, std::size_t begin,
                  std::size_t end);

}  // namespace tandem
