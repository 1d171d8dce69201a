// models/transformer/transformer_block.hpp — the one pre-norm decoder block, configured; families
// only describe it.
//
//   x = x + Out(Attention(In(Norm(x))))
//   x = x + Down(Activation(Up(Norm(x))))     or     x = x + sum of w_e Expert_e(Norm(x))
// models/layers/experts.hpp has the second form. Some families norm what Out and Down give, too,
// before it is added. Training drops some of attention's probabilities
// and of what is added to x (not of what experts add). Weights come in one fixed order, so that
// what is used together lies together: BlockNames lists it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/types/model.hpp"
#include "models/kernels/activation.hpp"
#include "models/kernels/norm.hpp"
#include "models/layers/attention.hpp"
#include "models/layers/dropout.hpp"
#include "models/layers/experts.hpp"
#include "models/transformer/router_balance.hpp"

namespace tandem {

struct BlockShape {
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
  // of the layers that have some; `intermediate` and `activation` are the dense ones'
  ExpertShape experts;
};

/// Names of a block's parameters in the order of its unit. A group is empty where the family has no
/// such parameter; where it has several (q, k, v; gate, up) they are joined along the output.
struct BlockNames {
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
  // weight[, bias]; empty: a dense layer, and then those above are not
  std::vector<std::string> router;
  std::vector<std::string> experts;  // as ExpertShape::parameters() has them
};

/// The shape of one layer of a model: without experts where the names have none.
BlockShape shape_of_layer(BlockShape shape, const BlockNames& names);

/// What a micro-batch of `batch` costs in a block, by what its layers keep and make.
ActivationBytes block_activations(const BlockShape& shape, const BatchShape& batch);

/// What is gathered, reduced and updated as one. A segment needs all of its units whatever the
/// routes, so the order of collectives is the plan's with each of them.
enum class LeafModule : std::uint8_t {
  kBlock,    // a block with all of its experts
  kMixture,  // its router and experts apart from the rest
  kExpert,   // each expert by itself where its parameters are its own; else as kMixture
};

/// The block's parameters with their shapes, in order: one unit, or the units that `leaf` asks for.
std::vector<UnitSpec> block_units(const std::string& name, const BlockShape& shape,
                                  const BlockNames& names, LeafModule leaf);

/// The segment; its weights are those of block_units(), in that order. `names` says which groups
/// there are.
std::shared_ptr<const Segment> block_segment(const BlockShape& shape, const BlockNames& names);

}  // namespace tandem
