// models/transformer/decoder.hpp — builds a decoder-only language model from its description.
//
// Units: embedding, one per block (or more: LeafModule), final norm (with the output matrix unless
// it is tied). Segments: the same; with tied embeddings the head uses the embedding's unit as well.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/types/model.hpp"
#include "models/transformer/transformer_layer.hpp"

namespace tandem {

struct DecoderSpec {
  std::int64_t vocabulary = 0;
  std::int64_t layers = 0;
  LayerShape block;
  LeafModule leaf = LeafModule::kBlock;
  std::vector<std::int64_t> windows;  // of each layer's attention, 0: none; empty: none at all
  std::shared_ptr<RotaryTable> window_rotary;  // of layers with a window; null: block.attention's
  std::function<LayerNames(std::int64_t layer)> layer_names;
  double router_loss = 0;  // coefficient of the routers' own loss; 0: none
  std::string embedding;
  double embedding_scale = 1;  // of its rows, rounded to the weights' type; not in a tied head
  std::string positions;       // learnt positions; empty: none
  std::int64_t max_positions = 0;
  std::vector<std::string> final_norm;  // weight[, bias]
  std::string output;                   // [V, hidden]; empty: tied to the embedding
  // token whose embedding gets no gradient from the input side
  std::optional<std::int64_t> padding;
  // The parts that learn; null: no module has adapters (block.adapters), no parameter is frozen.
  std::function<bool(const std::string& module)> adapts;
  std::function<bool(const std::string& parameter)> freezes;
};

/// Returns the model of a description; the caller sets its source.
Model make_decoder(const DecoderSpec& spec);

}  // namespace tandem
