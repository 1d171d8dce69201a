#include "models/transformer/adapters.hpp"

#include <algorithm>

#include "engine/tensors/tensor_memory.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr std::string_view kWeight = ".weight";

constexpr std::array kLinears = {AdaptedLinear::kQkv, AdaptedLinear::kOut, AdaptedLinear::kUp,
                                 AdaptedLinear::kDown};

DropPlace place_of(AdaptedLinear linear) {
  constexpr std::array kPlaces = {DropPlace::kQkvAdapters, DropPlace::kOutAdapters,
                                  DropPlace::kUpAdapters, DropPlace::kDownAdapters};
  return kPlaces[static_cast<std::size_t>(linear)];
}

}  // namespace

bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kAdapterA) || parameter.ends_with(kAdapterB);
}

std::string module_of(std::string_view weight) {
  TANDEM_CHECK(weight.ends_with(kWeight), "matrices are called weights");
  return std::string(weight.substr(0, weight.size() - kWeight.size()));
}

LayerAdapters::LayerAdapters(const LayerShape& shape, const LayerNames& names)
    : shape_(shape.adapters), seed_(shape.dropout.seed), layer_(shape.dropout.layer) {
  for (const AdaptedLinear linear : kLinears) {
    const auto which = static_cast<std::size_t>(linear);
    const std::vector<LinearShape> matrices = linear_shapes(shape, names, linear);
    Linear& of = linears_[which];
    of.first = parameters_.size();
    std::vector<ParameterSpec> bs;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      if (std::ranges::find(names.adapted[which], i) != names.adapted[which].end()) {
        const std::string module = module_of(names.matrices(linear)[i]);
        parameters_.push_back({module + std::string(kAdapterA), {shape_.rank, matrices[i].in}});
        bs.push_back({module + std::string(kAdapterB), {matrices[i].out, shape_.rank}});
        of.begins.push_back(begin);
      }
      begin += matrices[i].out;
    }
    parameters_.insert(parameters_.end(), bs.begin(), bs.end());
  }
}

Adapters LayerAdapters::of(AdaptedLinear linear, std::span<Weight* const> weights,
                           std::int64_t micro_batch) const {
  const Linear& of = linears_[static_cast<std::size_t>(linear)];
  if (of.begins.empty()) {
    return {};
  }
  const std::size_t count = of.begins.size();
  Adapters adapters{
      .a = JoinedWeights(weights.subspan(of.first, count)),
      .scale = static_cast<float>(shape_.scale),
      .drop = drop_mask(shape_.dropout, seed_, micro_batch, layer_, place_of(linear))};
  for (std::size_t i = 0; i < count; ++i) {
    adapters.parts.push_back(
        {JoinedWeights(weights.subspan(of.first + count + i, 1)), of.begins[i]});
  }
  return adapters;
}

AdapterSizes adapter_sizes(const LayerShape& shape, const LayerNames& names) {
  AdapterSizes sizes;
  for (const AdaptedLinear linear : kLinears) {
    const auto which = static_cast<std::size_t>(linear);
    if (names.adapted[which].empty()) {
      continue;
    }
    std::int64_t out = 0;
    const std::vector<LinearShape> matrices = linear_shapes(shape, names, linear);
    for (const LinearShape& matrix : matrices) {
      out += matrix.out;
    }
    const auto columns =
        static_cast<std::int64_t>(names.adapted[which].size()) * shape.adapters.rank;
    sizes.columns += columns;
    sizes.inputs += matrices.front().in;
    sizes.most_columns = std::max(sizes.most_columns, columns);
    sizes.most_inputs = std::max(sizes.most_inputs, matrices.front().in);
    sizes.most_outputs = std::max(sizes.most_outputs, out);
  }
  return sizes;
}

ActivationBytes adapter_activations(const AdapterSizes& sizes, const AdapterShape& shape,
                                    const BatchShape& batch) {
  const std::int64_t row = batch.tokens() * static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t dropped = shape.dropout > 0 ? sizes.most_inputs : 0;
  if (!batch.accelerator) {
    // x A^T; in backward its gradient, too, and with dropout the gradient of x by itself.
    const std::int64_t forward = sizes.most_columns + dropped;
    const std::int64_t backward = 2 * sizes.most_columns + 2 * dropped;
    return {
        .forward = row * forward,
        .backward = row * backward,
        .spare = 2 * kept_of_tensor(row * sizes.most_columns) + 2 * kept_of_tensor(row * dropped)};
  }
  // ATen keeps x A^T scaled and not, and what dropout left of x, and makes the sum beside what it
  // is added to.
  const std::int64_t kept = 2 * sizes.columns + (shape.dropout > 0 ? sizes.inputs : 0);
  return {.kept = row * kept,
          .forward = row * (2 * sizes.most_outputs + dropped),
          .backward = row * (2 * sizes.most_outputs + sizes.most_inputs + dropped)};
}

}  // namespace tandem
