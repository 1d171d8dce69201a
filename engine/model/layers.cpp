#include "engine/model/layers.hpp"

#include <cmath>
#include <utility>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/util/error.hpp"

namespace tandem {

Layer linear(std::int64_t in, std::int64_t out, LinearOptions options) {
  Layer layer;
  layer.parameters.push_back({.name = "weight",
                              .shape = {out, in},
                              .initial = options.weight ? std::move(options.weight)
                                                        : init::kaiming_uniform(1 / std::sqrt(3.0)),
                              .same_as = std::move(options.same_as)});
  if (options.bias) {
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    layer.parameters.push_back(
        {.name = "bias", .shape = {out}, .initial = init::uniform(-bound, bound)});
  }
  layer.forward = [](const LayerContext& own, const at::Tensor& x) {
    return at::linear(x, own[0], own.weights.size() > 1 ? own[1] : at::Tensor());
  };
  return layer;
}

Layer embedding(std::int64_t ids, std::int64_t width, double deviation) {
  return {
      .parameters = {{.name = "weight", .shape = {ids, width}, .initial = init::normal(deviation)}},
      .forward = [](const LayerContext& own,
                    const at::Tensor& x) { return at::embedding(own[0], x); },
      .uses = 0};
}

Layer layer_norm(std::int64_t width, double eps) {
  return {.parameters = {{.name = "weight", .shape = {width}, .initial = init::ones()},
                         {.name = "bias", .shape = {width}, .initial = init::zeros()}},
          .forward = [width, eps](const LayerContext& own, const at::Tensor& x) {
            return at::layer_norm(x, {width}, own[0], own[1], eps);
          }};
}

Layer activation(std::function<at::Tensor(const at::Tensor& input)> function) {
  return {.forward = [function = std::move(function)](const LayerContext& /*own*/,
                                                      const at::Tensor& x) { return function(x); }};
}

LossFunction cross_entropy() {
  return [](const at::Tensor& output, const Batch& batch) {
    if (batch.inputs.is_floating_point()) {
      return at::cross_entropy_loss(output, batch.labels);
    }
    const std::int64_t length = output.size(1);
    return at::cross_entropy_loss(output.narrow(1, 0, length - 1).flatten(0, 1),
                                  batch.labels.narrow(1, 1, length - 1).flatten());
  };
}

LossFunction mean_squared_error() {
  return [](const at::Tensor& output, const Batch& batch) {
    if (output.numel() != batch.labels.numel()) {
      throw user_error("model",
                       "mean_squared_error() has outputs [{}] and labels [{}]; as many "
                       "numbers of each are compared",
                       fmt::join(output.sizes(), ", "), fmt::join(batch.labels.sizes(), ", "));
    }
    return at::mse_loss(output.reshape(batch.labels.sizes()),
                        batch.labels.to(output.scalar_type()));
  };
}

}  // namespace tandem
