// models/cifar/net.hpp — the CIFAR-10 example's net: two convolutions with pooling, three linear
// layers, 62,006 parameters.
//
// conv 3-6-5, ReLU, pool 2; conv 6-16-5, ReLU, pool 2; 400-120-84-10 with ReLUs between. Names of
// tensors are torch's. It is one unit and one segment: a step takes about a millisecond, and each
// further boundary would cost a part of it.
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

/// SegmentCost::uses of some of these nets' parameters: a convolution's matrix at each of its
/// places; additions of a bias are not counted.
std::vector<std::int64_t> cifar_uses(std::span<const ParameterSpec> parameters);

/// Activations [B, 84] behind fc2 of images [B, 3, 32, 32] in the parameters' type; the first of
/// cifar_parameters().
at::Tensor cifar_trunk(const at::Tensor& images, std::span<const at::Tensor> parameters);

/// Logits [B, 10] of images [B, 3, 32, 32] in the parameters' type. Plain ATen: autograd works on
/// it, any device.
at::Tensor cifar_logits(const at::Tensor& images, std::span<const at::Tensor> parameters);

/// Fresh weights with torch's default bounds, 1 / sqrt(fan in); a function of seed, name and
/// position alone.
ParameterSource cifar_initial_weights(std::uint64_t seed);
/// A fresh parameter of a layer among `all`, drawn under `name`: layers drawn under one name are
/// copies.
void fill_layer(std::span<const ParameterSpec> all, const ParameterSpec& parameter,
                std::string_view name, std::uint64_t seed, std::int64_t begin, std::int64_t end,
                float* out);
/// Weights out of a safetensors file with torch's names. Throws user_error naming what is missing
/// or misshapen.
ParameterSource cifar_weights_of(const std::filesystem::path& file,
                                 std::span<const ParameterSpec> parameters = cifar_parameters());

/// For the engine. Batches: inputs fp32 [B, 3, 32, 32], labels int64 [B]; 16-bit weights cast the
/// images. On the CPU it is one fused operation (models/cifar/fused_net.hpp), elsewhere
/// cifar_logits().
Model make_cifar_model(ParameterSource source);

}  // namespace tandem
