// tests/support/toy/model.hpp — a small model of plain ATen segments: embedding, residual MLP
// blocks, tied head. Every way of handing over gradients occurs: plain autograd, a direct write,
// and a weight used by two segments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "engine/tensors/segment.hpp"
#include "runtime/util/error.hpp"

namespace tandem::toy {

inline constexpr std::int64_t kVocabulary = 37;
inline constexpr std::int64_t kHidden = 24;
inline constexpr std::int64_t kBlocks = 3;

class Embedding : public Segment {
 public:
  at::Tensor forward(const SegmentContext& context, const at::Tensor& /*input*/) const override {
    return at::embedding(context.weights[0]->value, context.batch.inputs);
  }
  void check_values(const Batch& batch) const override {
    const std::int64_t most = batch.inputs.max().item<std::int64_t>();
    if (most >= kVocabulary) {
      throw user_error("model", "token id {} is outside the vocabulary of {}", most, kVocabulary);
    }
  }
};

class Block : public Segment {
 public:
  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    const at::Tensor hidden =
        at::tanh(at::linear(input, context.weights[0]->value, context.weights[1]->value));
    return input + at::linear(hidden, context.weights[2]->value);
  }
};

class TiedHead : public Segment {
 public:
  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    const at::Tensor logits =
        at::linear(input * context.weights[1]->value, context.weights[0]->value).to(at::kFloat);
    if (context.head_output == HeadOutput::kLogits) {
      return logits;
    }
    const std::int64_t length = logits.size(1);
    return at::cross_entropy_loss(logits.narrow(1, 0, length - 1).reshape({-1, kVocabulary}),
                                  context.batch.labels.narrow(1, 1, length - 1).reshape({-1}));
  }
};

inline std::vector<ParameterSpec> block_parameters(std::int64_t i) {
  const std::string prefix = "block." + std::to_string(i) + ".";
  return {{prefix + "up.weight", {2 * kHidden, kHidden}},
          {prefix + "up.bias", {2 * kHidden}},
          {prefix + "down.weight", {kHidden, 2 * kHidden}}};
}

/// Deterministic values from the parameter's name and position.
inline void fill(const ParameterSpec& parameter, std::int64_t begin, std::int64_t end, float* out) {
  std::uint64_t seed = 1469598103934665603ULL;
  for (const char c : parameter.name) {
    seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  for (std::int64_t i = begin; i < end; ++i) {
    std::uint64_t x = seed + 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(i + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    out[i - begin] = (static_cast<float>(x >> 40) / 16777216.0F - 0.5F) * 0.4F;
  }
}

inline Model model() {
  Model model;
  model.units.push_back({"embedding", {{"embedding.weight", {kVocabulary, kHidden}}}});
  model.segments.push_back({"embedding", {{0, 0}}, std::make_shared<Embedding>()});
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    const std::size_t unit = model.units.size();
    model.units.push_back({"block " + std::to_string(i), block_parameters(i)});
    model.segments.push_back({"block " + std::to_string(i),
                              {{unit, 0}, {unit, 1}, {unit, 2}},
                              std::make_shared<Block>()});
  }
  const std::size_t norm = model.units.size();
  model.units.push_back({"scale", {{"scale.weight", {kHidden}}, {"unused.weight", {3}}}});
  model.segments.push_back({"head", {{0, 0}, {norm, 0}}, std::make_shared<TiedHead>()});
  model.source = fill;
  return model;
}

inline Batch batch(std::int64_t number, std::int64_t rows = 4, std::int64_t length = 12) {
  const at::Tensor ids = at::empty({rows, length}, at::kLong);
  auto* data = ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < rows * length; ++i) {
    data[i] = (number * 31 + i * i * 7 + i * 3) % kVocabulary;
  }
  at::Tensor labels = ids.clone();
  labels.narrow(1, 0, 3).fill_(-100);
  return {ids, labels};
}

}  // namespace tandem::toy
