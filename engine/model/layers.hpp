// engine/model/layers.hpp — a layer of a Sequential's segment: parameters and a function.
//
//   Layer scaled{.parameters = {{"scale", {width}, init::ones()}},
//                .forward = [](const LayerContext& layer, const at::Tensor& x) {
//                  return x * layer[0];
//                }};
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/model/initializers.hpp"
#include "engine/tensors/segment.hpp"

namespace tandem {

struct LayerParameter {
  std::string name;  // in its layer: "weight"
  std::vector<std::int64_t> shape;
  Initializer initial;
  /// The full name of an earlier segment's parameter that this one shares (tied weights). Both have
  /// the same shape; this one has no values of its own.
  std::string same_as = {};
  std::size_t group = 0;  // of InitializeArgs::parameter_groups
  bool frozen = false;
};

/// The arguments of a layer's function. Compute lane.
struct LayerContext {
  const Batch& batch;
  std::span<Weight* const> weights;  // the layer's own, in the order of Layer::parameters
  [[nodiscard]] const at::Tensor& operator[](std::size_t i) const { return weights[i]->value; }
};

/// A pure function of weights and input: it runs again in backward under activation checkpointing.
using LayerFunction = std::function<at::Tensor(const LayerContext& layer, const at::Tensor& input)>;

struct Layer {
  std::string name = {};  // between the segment's and the parameter's; may be empty
  std::vector<LayerParameter> parameters = {};
  LayerFunction forward;
  /// How often an input's row is multiplied with the parameters, for FLOPs: for a convolution the
  /// number of positions, for a look-up 0.
  std::int64_t uses = 1;

  [[nodiscard]] Layer named(std::string layer_name) && {
    name = std::move(layer_name);
    return std::move(*this);
  }
};

struct LinearOptions {
  bool bias = true;
  Initializer weight = nullptr;  // null: within 1 / sqrt(in), as torch.nn.Linear starts
  std::string same_as = {};      // for its weight: LayerParameter::same_as
};

/// x @ weight^T + bias: [..., in] -> [..., out].
[[nodiscard]] Layer linear(std::int64_t in, std::int64_t out, LinearOptions options = {});
/// Ids [...] -> [..., width]; values of a normal distribution.
[[nodiscard]] Layer embedding(std::int64_t ids, std::int64_t width, double deviation = 1);
/// Normalises over the last dimension.
[[nodiscard]] Layer layer_norm(std::int64_t width, double eps = 1e-5);
/// A function without parameters: activation(at::tanh).
[[nodiscard]] Layer activation(std::function<at::Tensor(const at::Tensor& input)> function);

/// Returns the mean loss of a micro-batch, a scalar in fp32, from the last layer's output in fp32.
using LossFunction = std::function<at::Tensor(const at::Tensor& output, const Batch& batch)>;

/// For labels that are classes; labels of -100 are ignored. Outputs are [B, classes], or [B, T,
/// ids] for tokens: then the output at position t is compared with label t + 1 (labels are not
/// shifted).
[[nodiscard]] LossFunction cross_entropy();
/// For labels that are numbers, of the outputs' shape.
[[nodiscard]] LossFunction mean_squared_error();

}  // namespace tandem
