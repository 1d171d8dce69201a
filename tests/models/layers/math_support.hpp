// tests/models/layers/math_support.hpp — weights on plain tensors, and comparison with the same
// function in double precision.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/tensors/segment.hpp"

namespace tandem::test {

/// Normal numbers, the same for the same seed.
inline at::Tensor random(at::IntArrayRef shape, std::uint64_t seed, double scale = 1.0) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)) * scale;
}

/// Parameters of one unit: adjacent in memory, gradients likewise and filled with NaN, so that one
/// that is added to before it was written shows.
class Parameters {
 public:
  Parameters(const std::vector<at::Tensor>& initial, at::ScalarType type) {
    std::int64_t numel = 0;
    for (const at::Tensor& t : initial) {
      numel += t.numel();
    }
    const auto options = at::TensorOptions().dtype(type);
    values_ = at::empty({numel}, options);
    gradients_ = at::full({numel}, std::numeric_limits<double>::quiet_NaN(), options);
    std::int64_t begin = 0;
    for (const at::Tensor& t : initial) {
      Weight& weight = weights_.emplace_back();
      weight.value = values_.narrow(0, begin, t.numel()).view(t.sizes()).detach();
      weight.value.copy_(t);
      // The reference gets the value after rounding to the type.
      reference_.push_back(weight.value.to(at::kDouble).requires_grad_(true));
      weight.value.requires_grad_(true);
      weight.grad = gradients_.narrow(0, begin, t.numel()).view(t.sizes());
      begin += t.numel();
    }
  }

  Weight& operator[](std::size_t i) { return weights_[i]; }
  std::vector<Weight*> pointers(std::size_t begin, std::size_t count) {
    std::vector<Weight*> all;
    for (std::size_t i = begin; i < begin + count; ++i) {
      all.push_back(&weights_[i]);
    }
    return all;
  }
  /// Double-precision leaves of the same values.
  at::Tensor& reference(std::size_t i) { return reference_[i]; }
  std::size_t size() const { return weights_.size(); }
  at::Tensor gradients() const { return gradients_; }

 private:
  at::Tensor values_, gradients_;
  std::deque<Weight> weights_;
  std::vector<at::Tensor> reference_;
};

/// An activation that requires grad, and the same in double.
struct Input {
  at::Tensor value, reference;

  Input(const at::Tensor& initial, at::ScalarType type)
      : value(initial.to(type).requires_grad_(true)),
        reference(value.detach().to(at::kDouble).requires_grad_(true)) {}
};

/// Greatest difference over the reference's greatest value.
inline double relative_error(const at::Tensor& got, const at::Tensor& reference) {
  const at::Tensor difference = (got.detach().to(at::kDouble) - reference.detach()).abs();
  if (difference.isnan().any().item<bool>()) {
    return std::numeric_limits<double>::infinity();
  }
  const double scale = reference.detach().abs().max().item<double>();
  return difference.max().item<double>() / (scale > 0 ? scale : 1.0);
}

inline std::string name_of(at::ScalarType type) {
  return type == at::kFloat ? "fp32" : type == at::kHalf ? "fp16" : "bf16";
}

/// fp32: rounding of sums; 16 bits: of the stored results (8 or 11 digits), amplified by what
/// follows.
inline double tolerance(at::ScalarType type) {
  return type == at::kFloat ? 2e-6 : type == at::kHalf ? 3e-3 : 2e-2;
}

/// Where a fused layer wrote it, or where plain autograd left it.
inline at::Tensor gradient_of(const Weight& weight) {
  return weight.grad_written ? weight.grad : weight.value.grad();
}

inline void expect_gradients(Parameters& parameters, at::ScalarType type) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(parameters[i].grad_written) << "parameter " << i;
    EXPECT_LE(relative_error(parameters[i].grad, parameters.reference(i).grad()), tolerance(type))
        << "parameter " << i;
  }
}

/// Backward of both with the same gradient, then the input's gradients side by side.
inline void backward_both(const at::Tensor& got, const at::Tensor& reference, std::uint64_t seed) {
  const at::Tensor gradient = random(got.sizes(), seed).to(got.scalar_type());
  torch::autograd::backward({got}, {gradient});
  torch::autograd::backward({reference}, {gradient.to(at::kDouble)});
}

}  // namespace tandem::test
