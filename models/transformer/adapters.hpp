// models/transformer/adapters.hpp — the low-rank adapters of one layer: their parameters, and their
// use in its linear layers.
//
// The parameters are, for each linear layer, the A of all its adapted matrices and then their B, in
// the order of the block's names. They are a unit of their own behind the block's. So a frozen base
// needs no gradient slots, accumulators and moments, and the unit that learns is small and stays
// whole on each rank.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tensors/segment.hpp"
#include "models/layers/weights.hpp"
#include "models/transformer/transformer_layer.hpp"

namespace tandem {

/// The endings of adapters' parameter names, behind the module's name.
inline constexpr std::string_view kAdapterA = ".lora_A.weight";  // [rank, in]
inline constexpr std::string_view kAdapterB = ".lora_B.weight";  // [out, rank]

/// Whether a parameter is an adapter's.
[[nodiscard]] bool is_adapter(std::string_view parameter);
/// Returns the module of a weight: "model.layers.0.mlp.up_proj" for
/// "model.layers.0.mlp.up_proj.weight".
[[nodiscard]] std::string module_of(std::string_view weight);

class LayerAdapters {
 public:
  /// Makes adapters for the matrices that `names.adapted` lists.
  LayerAdapters(const LayerShape& shape, const LayerNames& names);

  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// Returns a linear layer's adapters, bound to `weights`, the weights of parameters(), for a
  /// micro-batch (Batch::number).
  [[nodiscard]] Adapters of(AdaptedLinear linear, std::span<Weight* const> weights,
                            std::int64_t micro_batch) const;

 private:
  struct Linear {
    std::size_t first = 0;             // of its parameters
    std::vector<std::int64_t> begins;  // of each adapted matrix: its first output
  };

  std::array<Linear, kAdaptedLinears> linears_;
  std::vector<ParameterSpec> parameters_;
  AdapterShape shape_;
  std::uint64_t seed_ = 0;
  std::int64_t layer_ = 0;
};

/// Returns the sizes of a layer's adapters, for the memory plan.
AdapterSizes adapter_sizes(const LayerShape& shape, const LayerNames& names);
/// Returns the adapters' activations of a micro-batch, beside their layers' own.
ActivationBytes adapter_activations(const AdapterSizes& sizes, const AdapterShape& shape,
                                    const BatchShape& batch);

}  // namespace tandem
