// models/cifar/net.hpp — the CIFAR-10 example's net: two convolutions with pooling, three linear
// layers, 62,006 parameters.
//
// conv 3-6-5, ReLU, pool 2; conv 6-16-5, ReLU, pool 2; 400-120-84-10 with ReLUs between. The
// tensors have torch's names. The net is one unit and one segment: a step takes about a
// millisecond, and each further boundary would cost a part of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/types/model.hpp"

namespace tandem {

inline constexpr std::int64_t kCifarClasses = 10;

/// conv1.weight [6, 3, 5, 5], conv1.bias, conv2.weight [16, 6, 5, 5], ..., fc3.bias [10], in
/// torch's order.
const std::vector<ParameterSpec>& cifar_parameters();

inline constexpr std::size_t kCifarTrunkParameters = 8;  // of conv1 to fc2

/// Returns SegmentCost::uses of parameters of these nets: a convolution's matrix counts once for
/// each output position; a bias counts 0.
std::vector<std::int64_t> cifar_uses(std::span<const ParameterSpec> parameters);

/// Returns fc2's activations [B, 84] of images [B, 3, 32, 32] in the parameters' type. `parameters`
/// begins with the trunk's (the first kCifarTrunkParameters of cifar_parameters()).
at::Tensor cifar_trunk(const at::Tensor& images, std::span<const at::Tensor> parameters);

/// Returns logits [B, 10] of images [B, 3, 32, 32] in the parameters' type. Plain ATen: any device,
/// with autograd.
at::Tensor cifar_logits(const at::Tensor& images, std::span<const at::Tensor> parameters);

/// Returns fresh weights with torch's default bounds, 1 / sqrt(fan in); a function of seed, name
/// and position alone.
ParameterSource cifar_initial_weights(std::uint64_t seed);
/// Fills `out` with elements [begin, end) of a fresh parameter, whose layer is among `all`. The
/// values are drawn under `name`: layers that are drawn under one name are copies.
void fill_layer(std::span<const ParameterSpec> all, const ParameterSpec& parameter,
                std::string_view name, std::uint64_t seed, std::int64_t begin, std::int64_t end,
                float* out);
/// Reads the weights of a safetensors file with torch's names. Throws an error that names a
/// parameter which is missing or has another shape.
ParameterSource cifar_weights_of(const std::filesystem::path& file,
                                 std::span<const ParameterSpec> parameters = cifar_parameters());

/// Returns the model for the engine. A batch has inputs fp32 [B, 3, 32, 32] and labels int64 [B];
/// the images are rounded to the weights' type. On the CPU the model is one fused operation
/// (models/cifar/fused_net.hpp), on other devices cifar_logits().
Model make_cifar_model(ParameterSource source);

}  // namespace tandem
