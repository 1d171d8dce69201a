// actors/kernels/optimizers/optimizers.hpp — the optimizers: for each one the name, defaults, state
// and the constants of a step. The rules per element are in *_rule-inl.hpp beside this file.
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
//             where u is the direction that update/direction.hpp has written over the gradient;
//             LAMB: rate = lr * sqrt(1 - beta2^t) / (1 - beta1^t) * trust ratio, decay = 0
//             Muon: rate = lr * clip coefficient, decay = lr * weight_decay
//
// Adam: Kingma & Ba 2015, Loshchilov & Hutter 2019; the operations have the order of DeepSpeed's
// CPUAdam; (1 - beta2) * g comes first, because g * g may overflow where v' does not. SGD: as
// torch.optim.SGD. Lion: Chen et al. 2023; sign(0) is 0, so elements without a gradient (padding,
// an embedding's unused rows) do not change, whereas DeepSpeed's CPULion changes them by lr.
//
// An optimizer consists of a struct of its step's constants with traits(), make(), arrays() and ==,
// a value of OptimizerKind, an entry in each list at the end, and its rule. The kernels for the CPU
// and the GPU, the keys of a config, the names in a checkpoint and the refused layouts follow from
// these. Constants are computed in double and rounded once. All functions are pure. C++17, for nvcc
// as well.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "actors/kernels/state_layout.hpp"
#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class OptimizerKind : std::uint8_t { kAdam, kSgd, kLion, kAdagrad, kLamb, kMuon };

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

/// Describes an optimizer, apart from its formula.
struct OptimizerTraits {
  std::string_view name;  // a config's optimizer.type, which may be in upper or lower case
  UpdateConfig defaults;  // of a config's optimizer.params, with the kind
  // The parameters that the optimizer has beside lr and weight_decay.
  bool has_betas = false;
  bool has_eps = false;
  bool has_momentum = false;
  /// Whether an element's update depends on the other elements of its tensor: then a separate pass
  /// computes the direction first (update/direction.hpp).
  bool is_joint = false;
  std::string_view states[2];   // torch.optim's names of the state arrays
  std::string_view refused[4];  // by StateLayout: the reason; empty: the layout is supported

  constexpr void refuse(StateLayout layout, std::string_view reason) {
    refused[static_cast<std::size_t>(layout)] = reason;
  }
  constexpr void refuse_all_but_fp32(std::string_view reason) {
    refuse(StateLayout::kSplit, reason);
    refuse(StateLayout::kBf16, reason);
    refuse(StateLayout::kInt8, reason);
  }
  [[nodiscard]] constexpr bool supports(StateLayout layout) const {
    return refused[static_cast<std::size_t>(layout)].empty();
  }
};

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

  static constexpr OptimizerTraits traits() {
    OptimizerTraits t;
    t.name = "Adam";
    t.has_betas = t.has_eps = true;
    t.states[0] = "exp_avg";
    t.states[1] = "exp_avg_sq";
    return t;
  }
  static AdamStep make(const UpdateConfig& c, std::int64_t step, double gradient_scale) {
    const auto t = static_cast<double>(step);
    const double bias1 = c.bias_correction ? 1.0 - std::pow(c.beta1, t) : 1.0;
    const double bias2 = c.bias_correction ? 1.0 - std::pow(c.beta2, t) : 1.0;
    AdamStep s;
    s.gradient_scale = static_cast<float>(gradient_scale);
    s.beta1 = static_cast<float>(c.beta1);
    s.one_minus_beta1 = static_cast<float>(1.0 - c.beta1);
    s.beta2 = static_cast<float>(c.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - c.beta2);
    s.eps = static_cast<float>(c.eps);
    s.step_size = static_cast<float>(c.lr / bias1);
    s.inverse_root_bias = static_cast<float>(1.0 / std::sqrt(bias2));
    s.decay = static_cast<float>(c.adamw ? c.lr * c.weight_decay : c.weight_decay);
    s.adamw = c.adamw;
    return s;
  }
  [[nodiscard]] std::size_t arrays() const { return 2; }

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

  static constexpr OptimizerTraits traits() {
    OptimizerTraits t;
    t.name = "SGD";
    t.defaults.kind = OptimizerKind::kSgd;
    t.has_momentum = true;
    t.states[0] = "momentum_buffer";
    t.refuse_all_but_fp32("SGD has too little state to gain from it");
    return t;
  }
  static SgdStep make(const UpdateConfig& c, std::int64_t step, double gradient_scale) {
    SgdStep s;
    s.gradient_scale = static_cast<float>(gradient_scale);
    s.lr = static_cast<float>(c.lr);
    s.momentum = static_cast<float>(c.momentum);
    s.one_minus_dampening = static_cast<float>(1.0 - c.dampening);
    s.decay = static_cast<float>(c.weight_decay);
    s.first = step == 1;
    s.nesterov = c.nesterov;
    return s;
  }
  [[nodiscard]] std::size_t arrays() const { return momentum == 0.0F ? 0 : 1; }

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

  static constexpr OptimizerTraits traits() {
    OptimizerTraits t;
    t.name = "Lion";
    t.defaults.kind = OptimizerKind::kLion;
    t.defaults.beta2 = 0.99;
    t.has_betas = true;
    t.states[0] = "exp_avg";
    t.refuse(StateLayout::kSplit, "Lion has no moment whose sign is free to hold a tie");
    return t;
  }
  static LionStep make(const UpdateConfig& c, std::int64_t /*step*/, double gradient_scale) {
    LionStep s;
    s.gradient_scale = static_cast<float>(gradient_scale);
    s.lr = static_cast<float>(c.lr);
    s.beta1 = static_cast<float>(c.beta1);
    s.one_minus_beta1 = static_cast<float>(1.0 - c.beta1);
    s.beta2 = static_cast<float>(c.beta2);
    s.one_minus_beta2 = static_cast<float>(1.0 - c.beta2);
    s.decay = static_cast<float>(c.lr * c.weight_decay);
    return s;
  }
  [[nodiscard]] std::size_t arrays() const { return 1; }

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

  static constexpr OptimizerTraits traits() {
    OptimizerTraits t;
    t.name = "Adagrad";
    t.defaults.kind = OptimizerKind::kAdagrad;
    t.defaults.lr = 1e-2;
    t.defaults.eps = 1e-10;
    t.has_eps = true;
    t.states[0] = "sum";
    constexpr const char* kGrows = "Adagrad's sum only grows, and would soon lose what is added";
    t.refuse(StateLayout::kBf16, kGrows);
    t.refuse(StateLayout::kInt8, kGrows);
    return t;
  }
  static AdagradStep make(const UpdateConfig& c, std::int64_t /*step*/, double gradient_scale) {
    AdagradStep s;
    s.gradient_scale = static_cast<float>(gradient_scale);
    s.lr = static_cast<float>(c.lr);
    s.eps = static_cast<float>(c.eps);
    s.decay = static_cast<float>(c.weight_decay);
    return s;
  }
  [[nodiscard]] std::size_t arrays() const { return 1; }

  bool operator==(const AdagradStep& o) const {
    return gradient_scale == o.gradient_scale && lr == o.lr && eps == o.eps && decay == o.decay;
  }
};

/// A step along a direction, which has replaced the gradient in memory (LAMB, Muon).
struct AlongStep {
  float rate = 0.0F;
  float decay = 0.0F;

  static constexpr OptimizerTraits traits() {
    OptimizerTraits t;
    t.is_joint = true;
    t.states[0] = "exp_avg";  // Muon's momentum is an average, too
    t.states[1] = "exp_avg_sq";
    t.refuse_all_but_fp32("LAMB and Muon read the fp32 master and moments in two passes");
    return t;
  }
  static constexpr OptimizerTraits lamb_traits() {
    OptimizerTraits t = traits();
    t.name = "Lamb";
    t.defaults.kind = OptimizerKind::kLamb;
    t.has_betas = t.has_eps = true;
    return t;
  }
  /// Betas and eps belong to AdamW, by which Muon updates everything except matrices.
  static constexpr OptimizerTraits muon_traits() {
    OptimizerTraits t = traits();
    t.name = "Muon";
    t.defaults.kind = OptimizerKind::kMuon;
    t.defaults.lr = 2e-2;
    t.defaults.beta2 = 0.95;
    t.defaults.eps = 1e-10;
    t.defaults.momentum = 0.95;
    t.has_betas = t.has_eps = t.has_momentum = true;
    return t;
  }
  /// `scale`: LAMB's trust ratio, Muon's clip coefficient.
  static AlongStep make(const UpdateConfig& c, std::int64_t step, double scale) {
    AlongStep s;
    if (c.kind == OptimizerKind::kMuon) {
      s.rate = static_cast<float>(c.lr * scale);
      s.decay = static_cast<float>(c.lr * c.weight_decay);
      return s;
    }
    double correction = 1.0;  // the decay is in the direction
    if (c.bias_correction) {
      const auto t = static_cast<double>(step);
      correction = std::sqrt(1.0 - std::pow(c.beta2, t)) / (1.0 - std::pow(c.beta1, t));
    }
    s.rate = static_cast<float>(c.lr * correction * scale);
    return s;
  }
  [[nodiscard]] std::size_t arrays() const { return 0; }  // write_direction() updates the moments

  bool operator==(const AlongStep& o) const { return rate == o.rate && decay == o.decay; }
};

/// In the order of OptimizerKind; all joint optimizers share the last alternative.
using StepConstants = std::variant<AdamStep, SgdStep, LionStep, AdagradStep, AlongStep>;

/// In the order of OptimizerKind.
inline constexpr OptimizerTraits kOptimizers[] = {
    AdamStep::traits(),    SgdStep::traits(),        LionStep::traits(),
    AdagradStep::traits(), AlongStep::lamb_traits(), AlongStep::muon_traits()};

[[nodiscard]] constexpr const OptimizerTraits& traits_of(OptimizerKind kind) noexcept {
  return kOptimizers[static_cast<std::size_t>(kind)];
}
[[nodiscard]] constexpr std::string_view name_of(OptimizerKind kind) noexcept {
  return traits_of(kind).name;
}
[[nodiscard]] constexpr bool updates_jointly(OptimizerKind kind) noexcept {
  return traits_of(kind).is_joint;
}

namespace detail {

constexpr bool are_in_order() {
  std::size_t place = 0;
  for (const OptimizerTraits& optimizer : kOptimizers) {
    if (static_cast<std::size_t>(optimizer.defaults.kind) != place++) {
      return false;
    }
  }
  return true;
}
static_assert(are_in_order(), "kOptimizers is in the order of OptimizerKind");

}  // namespace detail

}  // namespace tandem
