// models/transformer/transformer_layer.hpp — the one pre-norm decoder block, configured; families
// only describe it.
//
//   x = x + Out(Attention(In(Norm(x))))
//   x = x + Down(Activation(Up(Norm(x))))     or     x = x + sum of w_e Expert_e(Norm(x))
// models/layers/experts.hpp has the second form. Some families also norm the outputs of Out and
// Down before they are added. In training, dropout applies to attention's probabilities and to the
// outputs that are added to x (not to the experts'). Weights have one fixed order, which LayerNames
// lists, so that weights which are used together lie together. The weights of the layer's adapters
// (models/transformer/adapters.hpp), if it has some, come behind them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/tensors/segment.hpp"
#include "models/kernels/activation.hpp"
#include "models/kernels/norm.hpp"
#include "models/layers/attention.hpp"
#include "models/layers/dropout.hpp"
#include "models/layers/experts.hpp"
#include "models/transformer/router_balance.hpp"

namespace tandem {

/// The low-rank adapters of a model's linear layers (LoRA).
struct AdapterShape {
  std::int64_t rank = 0;  // 0: none
  double scale = 1;       // of what they add
  double dropout = 0;     // rate, of their inputs
};

/// Sizes of a layer's adapters: columns are of x A^T, for each token.
struct AdapterSizes {
  std::int64_t columns = 0, inputs = 0;                              // of all its linear layers
  std::int64_t most_columns = 0, most_inputs = 0, most_outputs = 0;  // of one of them
};

struct LayerShape {
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  NormKind norm = NormKind::kRms;
  double norm_eps = 1e-6;
  AttentionShape attention;
  Activation activation = Activation::kSwiGlu;
  bool input_major = false;  // matrices are [in, out], as GPT-2's Conv1D
  bool norms_sums = false;   // the layer has attention_out_norm and down_norm
  LayerDropout dropout;
  std::shared_ptr<RouterBalance> balance;  // null: routers have no loss of their own
  // of layers with experts; `intermediate` and `activation` are of dense layers
  ExpertShape experts;
  AdapterShape adapters;
  AdapterSizes adapter_sizes;  // by shape_of_layer()
};

/// The linear layers of a block that adapters can have.
enum class AdaptedLinear : std::uint8_t { kQkv, kOut, kUp, kDown };
inline constexpr std::size_t kAdaptedLinears = 4;

/// Names of a block's parameters in the order of its unit. A group is empty where the family has no
/// such parameter; where it has several (q, k, v; gate, up) they are joined along the output.
struct LayerNames {
  std::vector<std::string> attention_norm;  // weight[, bias]
  std::vector<std::string> qkv, qkv_bias;
  std::vector<std::string> qk_norm;  // q, k
  std::vector<std::string> sinks;    // one per head
  std::vector<std::string> attention_out, attention_out_bias;
  std::vector<std::string> attention_out_norm;  // weight; of what attention adds
  std::vector<std::string> mlp_norm;            // weight[, bias]
  std::vector<std::string> up, up_bias;
  std::vector<std::string> down, down_bias;
  std::vector<std::string> down_norm;  // weight; of what the MLP adds
  // weight[, bias]; empty: a dense layer, which has up and down
  std::vector<std::string> router;
  std::vector<std::string> experts;  // as ExpertShape::parameters() has them
  // [AdaptedLinear] the matrices that have adapters: places in its group, ascending
  std::array<std::vector<std::size_t>, kAdaptedLinears> adapted = {};

  [[nodiscard]] const std::vector<std::string>& matrices(AdaptedLinear linear) const {
    const std::array<const std::vector<std::string>*, kAdaptedLinears> groups = {
        &qkv, &attention_out, &up, &down};
    return *groups[static_cast<std::size_t>(linear)];
  }
};

/// Returns the shape of one layer of a model, without experts or adapters if the names have none.
LayerShape shape_of_layer(LayerShape shape, const LayerNames& names);

/// The modules that are gathered, reduced and updated as one unit. A segment needs all of its units
/// whatever the routes are, so with each choice collectives have the plan's order.
enum class LeafModule : std::uint8_t {
  kBlock,    // a block with all of its experts
  kMixture,  // its router and experts apart from the rest
  kExpert,   // each expert by itself if its parameters are its own (kApart); else as kMixture
};

/// The extents of one matrix of a linear layer; linear_shapes() has the order of the names.
struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
};
std::vector<LinearShape> linear_shapes(const LayerShape& shape, const LayerNames& names,
                                       AdaptedLinear linear);

/// Returns the block's parameters with their shapes, in order: one unit, or the units that `leaf`
/// asks for, and one for its adapters, if it has some.
std::vector<UnitSpec> block_units(const std::string& name, const LayerShape& shape,
                                  const LayerNames& names, LeafModule leaf);

/// Returns the block's segment. Its weights are the parameters of block_units(), in that order.
/// `names` says which groups exist.
std::shared_ptr<const Segment> layer_segment(const LayerShape& shape, const LayerNames& names);

}  // namespace tandem
