#include "models/cifar/net.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/Functions.h>

#include "actors/storage/safetensors.hpp"
#include "models/cifar/fused_net.hpp"
#include "models/io/random_init.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

/// Position in cifar_parameters().
enum Index : std::size_t {
  kConv1Weight,
  kConv1Bias,
  kConv2Weight,
  kConv2Bias,
  kFc1Weight,
  kFc1Bias,
  kFc2Weight,
  kFc2Bias,
  kFc3Weight,
  kFc3Bias,
};

class NetSegment : public Segment {
 public:
  at::Tensor forward(const SegmentContext& context, const at::Tensor& /*input*/) const override {
    if (fused_cifar_takes(context.weights.front()->value)) {
      return context.head_output == HeadOutput::kLogits
                 ? fused_cifar_logits(context.batch.inputs, context.weights)
                 : fused_cifar_loss(context.batch.inputs, context.batch.labels, context.weights);
    }
    return by_aten(context);
  }

 private:
  /// By ATen's operations, in the weights' type.
  static at::Tensor by_aten(const SegmentContext& context) {
    std::vector<at::Tensor> parameters;
    parameters.reserve(context.weights.size());
    for (const Weight* weight : context.weights) {
      parameters.push_back(weight->value);
    }
    const at::Tensor images = context.batch.inputs.to(parameters.front().scalar_type());
    const at::Tensor logits = cifar_logits(images, parameters).to(at::kFloat);
    if (context.head_output == HeadOutput::kLogits) {
      return logits;
    }
    return at::cross_entropy_loss(logits, context.batch.labels);
  }
};

}  // namespace

const std::vector<ParameterSpec>& cifar_parameters() {
  static const std::vector<ParameterSpec> all = {
      {"conv1.weight", {6, 3, 5, 5}},      {"conv1.bias", {6}},
      {"conv2.weight", {16, 6, 5, 5}},     {"conv2.bias", {16}},
      {"fc1.weight", {120, 400}},          {"fc1.bias", {120}},
      {"fc2.weight", {84, 120}},           {"fc2.bias", {84}},
      {"fc3.weight", {kCifarClasses, 84}}, {"fc3.bias", {kCifarClasses}}};
  return all;
}

std::vector<std::int64_t> cifar_uses(std::span<const ParameterSpec> parameters) {
  std::vector<std::int64_t> uses;
  for (const ParameterSpec& parameter : parameters) {
    uses.push_back(parameter.name == "conv1.weight"      ? std::int64_t{28} * 28
                   : parameter.name == "conv2.weight"    ? std::int64_t{10} * 10
                   : parameter.name.ends_with(".weight") ? 1
                                                         : 0);
  }
  return uses;
}

at::Tensor cifar_trunk(const at::Tensor& images, std::span<const at::Tensor> parameters) {
  TANDEM_CHECK(parameters.size() >= kCifarTrunkParameters, "this net's parameters");
  const auto& p = parameters;
  const auto convolved = [](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::max_pool2d(at::relu(at::conv2d(x, weight, bias)), {2, 2});
  };
  at::Tensor x = convolved(images, p[kConv1Weight], p[kConv1Bias]);
  x = convolved(x, p[kConv2Weight], p[kConv2Bias]).flatten(1);
  x = at::relu(at::linear(x, p[kFc1Weight], p[kFc1Bias]));
  return at::relu(at::linear(x, p[kFc2Weight], p[kFc2Bias]));
}

at::Tensor cifar_logits(const at::Tensor& images, std::span<const at::Tensor> parameters) {
  TANDEM_CHECK(parameters.size() == cifar_parameters().size(), "this net's parameters");
  return at::linear(cifar_trunk(images, parameters), parameters[kFc3Weight], parameters[kFc3Bias]);
}

void fill_layer(std::span<const ParameterSpec> all, const ParameterSpec& parameter,
                std::string_view name, std::uint64_t seed, std::int64_t begin, std::int64_t end,
                float* out) {
  const std::string layer = parameter.name.substr(0, parameter.name.rfind('.'));
  const auto weight =
      std::ranges::find(all, layer + ".weight", [](const ParameterSpec& p) { return p.name; });
  TANDEM_CHECK(weight != all.end(), "a parameter of this net");
  const std::int64_t fan_in = weight->numel() / weight->shape.front();  // inputs of one output
  fill_uniform(name, seed, 1.0 / std::sqrt(static_cast<double>(fan_in)), begin, end, out);
}

ParameterSource cifar_initial_weights(std::uint64_t seed) {
  return [seed](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end, float* out) {
    fill_layer(cifar_parameters(), parameter, parameter.name, seed, begin, end, out);
  };
}

ParameterSource cifar_weights_of(const std::filesystem::path& file,
                                 std::span<const ParameterSpec> parameters) {
  const auto weights = std::make_shared<const SafetensorsFile>(SafetensorsFile::open(file));
  for (const ParameterSpec& parameter : parameters) {
    const TensorInfo& found = weights->at(parameter.name);
    if (found.shape != parameter.shape || !is_float(found.type)) {
      throw user_error("weights", "{} in {} is {} {}, expected floats {}; use weights of this net",
                       parameter.name, file.string(), name_of(found.type), shape_text(found.shape),
                       shape_text(parameter.shape));
    }
  }
  return [weights](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                   float* out) { weights->read_f32(parameter.name, begin, end, out); };
}

Model make_cifar_model(ParameterSource source) {
  Model model;
  model.units.push_back({"net", cifar_parameters()});
  SegmentSpec segment{.name = "net", .run = std::make_shared<NetSegment>()};
  for (std::size_t i = 0; i < cifar_parameters().size(); ++i) {
    segment.weights.push_back({.unit = 0, .parameter = i});
  }
  segment.cost.uses = cifar_uses(cifar_parameters());
  model.segments.push_back(std::move(segment));
  model.source = std::move(source);
  return model;
}

}  // namespace tandem
