// tests/models/layers/harness.hpp — runs a Model on plain tensors, segment by segment, as the
// engine would.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/tensors/segment.hpp"

namespace tandem::test {

/// The units of a model as flat blocks, their parameters as views. `source` gives the initial
/// values.
class MathHarness {
 public:
  MathHarness(Model model, at::ScalarType type, const ParameterSource& source)
      : model_(std::move(model)) {
    for (const UnitSpec& unit : model_.units) {
      const std::int64_t numel = unit.numel();
      values_.push_back(at::empty({numel}, at::kFloat));
      gradients_.push_back(at::full({numel}, kPoison, at::TensorOptions().dtype(type)));
      auto& weights = weights_.emplace_back(unit.parameters.size());
      std::int64_t begin = 0;
      for (const ParameterSpec& p : unit.parameters) {
        source(p, 0, p.numel(), values_.back().data_ptr<float>() + begin);
        begin += p.numel();
      }
      values_.back() = values_.back().to(type);
      begin = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const auto& shape = unit.parameters[i].shape;
        const std::int64_t n = unit.parameters[i].numel();
        weights[i].value = values_.back().narrow(0, begin, n).view(shape).detach();
        weights[i].value.requires_grad_(!unit.parameters[i].frozen);
        weights[i].wants_grad = !unit.parameters[i].frozen;
        weights[i].grad = gradients_.back().narrow(0, begin, n).view(shape);
        begin += n;
      }
    }
  }

  /// Loss of one micro-batch; gradients afterwards in gradient(). `seed` is d(objective)/d(loss).
  float step(const Batch& batch, float seed = 1.0F) {
    for (auto& unit : weights_) {
      for (Weight& weight : unit) {
        weight.grad_written = false;
      }
    }
    const std::size_t count = model_.segments.size();
    std::vector<at::Tensor> inputs(count);
    std::vector<at::Tensor> outputs(count);
    for (std::size_t s = 0; s < count; ++s) {
      if (s > 0) {
        inputs[s] = outputs[s - 1].detach().requires_grad_(true);
      }
      outputs[s] = run(s, batch, inputs[s], HeadOutput::kLoss);
    }
    at::Tensor gradient = at::full({}, seed);
    for (std::size_t s = count; s-- > 0;) {
      const at::Tensor output = std::exchange(outputs[s], {});
      if (output.requires_grad()) {  // not a first segment that is frozen
        torch::autograd::backward({output}, {gradient});
      }
      if (s > 0) {
        gradient = inputs[s].grad();
        inputs[s].reset();
      }
      collect_autograd_gradients();
    }
    return last_loss_;
  }

  at::Tensor logits(const at::Tensor& tokens) {
    const c10::AutoGradMode no_grad(false);
    const Batch batch{tokens, {}};
    at::Tensor x;
    for (std::size_t s = 0; s < model_.segments.size(); ++s) {
      x = run(s, batch, x, HeadOutput::kLogits);
    }
    return x;
  }

  [[nodiscard]] std::map<std::string, Weight*> parameters() {
    std::map<std::string, Weight*> all;
    for (std::size_t u = 0; u < model_.units.size(); ++u) {
      for (std::size_t i = 0; i < weights_[u].size(); ++i) {
        all[model_.units[u].parameters[i].name] = &weights_[u][i];
      }
    }
    return all;
  }

  const std::vector<at::Tensor>& values() const { return values_; }
  const std::vector<at::Tensor>& gradients() const { return gradients_; }

 private:
  // a gradient that is added to before it was written shows
  static constexpr float kPoison = 3e30F;

  at::Tensor run(std::size_t s, const Batch& batch, const at::Tensor& input, HeadOutput output) {
    std::vector<Weight*> weights;
    for (const WeightRef& ref : model_.segments[s].weights) {
      weights.push_back(&weights_[ref.unit][ref.parameter]);
    }
    at::Tensor out = model_.segments[s].run->forward(
        {.batch = batch, .weights = weights, .head_output = output}, input);
    if (s + 1 == model_.segments.size() && output == HeadOutput::kLoss) {
      last_loss_ = out.item<float>();
    }
    return out;
  }

  /// Adds the gradients that plain operations left at the leaves, as the engine does.
  void collect_autograd_gradients() {
    for (auto& unit : weights_) {
      for (Weight& weight : unit) {
        if (at::Tensor& left = weight.value.mutable_grad(); left.defined()) {
          weight.grad_written ? weight.grad.add_(left) : weight.grad.copy_(left);
          weight.grad_written = true;
          left.reset();
        }
      }
    }
  }

  Model model_;
  std::vector<at::Tensor> values_, gradients_;
  std::vector<std::vector<Weight>> weights_;
  float last_loss_ = 0;
};

}  // namespace tandem::test
