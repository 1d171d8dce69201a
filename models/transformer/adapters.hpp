// models/transformer/adapters.hpp — the low-rank adapters of one layer: their parameters, and their
// use in its linear layers.
//
// For each linear layer the A of all its adapted matrices, then their B, in the order of the
// block's names. They are a unit of their own, behind the block's: so what a frozen base costs
// (gradient slots, accumulators, moments) is nothing, and what learns is small and stays whole on
// each rank.
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

/// How the names of adapters' parameters end, behind the name of the module that has them.
inline constexpr std::string_view kAdapterA = ".lora_A.weight";  // [rank, in]
inline constexpr std::string_view kAdapterB = ".lora_B.weight";  // [out, rank]

/// Whether a parameter is an adapter's.
[[nodiscard]] bool is_adapter(std::string_view parameter);
/// "model.layers.0.mlp.up_proj" of its weight's name.
[[nodiscard]] std::string module_of(std::string_view weight);

class LayerAdapters {
 public:
  /// Adapters of the matrices that the names say; none where they say none.
  LayerAdapters(const LayerShape& shape, const LayerNames& names);

  [[nodiscard]] const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  /// Bound to `weights`, those of parameters(), for a micro-batch (Batch::number).
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

/// The sizes of a layer's adapters, for the memory plan.
AdapterSizes adapter_sizes(const LayerShape& shape, const LayerNames& names);
/// Activations of a micro-batch in them, beside the layers that they belong to.
ActivationBytes adapter_activations(const AdapterSizes& sizes, const AdapterShape& shape,
                                    const BatchShape& batch);

}  // namespace tandem
