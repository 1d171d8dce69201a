// models/families/llama_like.hpp — shared code of the families that name and compute like Llama:
// RMS norms, rotary positions, gated MLPs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/families/family.hpp"
#include "models/io/hf_fields.hpp"

namespace tandem {

/// Members that these families share, at the same values; a family's own list comes first.
inline constexpr std::array kLlamaMembers = {used("num_key_value_heads"),
                                             used("head_dim"),
                                             used("hidden_act", "\"silu\""),
                                             used("attention_dropout", "0.0"),
                                             used("rope_theta"),
                                             used("rope_scaling"),
                                             used("rope_parameters"),
                                             used("partial_rotary_factor"),
                                             used("original_max_position_embeddings")};
/// The same of families with experts.
inline constexpr std::array kExpertMembers = {also("num_experts", "num_local_experts"),
                                              used("router_aux_loss_coef", "0.001"),
                                              used("output_router_logits", "false")};

/// The values of what a config.json of the family may leave out and its list of members does not
/// say, because they depend on other members.
struct LlamaDefaults {
  std::optional<std::int64_t> pad_token_id = std::nullopt;
  RopeDefaults rope = {};
  bool tied = false;
};

/// Sizes, activation, rotary positions, dropout of attention. Biases and windows are the family's.
void read_llama_like(const JsonValue& root, const LlamaDefaults& defaults, HfConfig& config);
/// The same without activation and rotary positions, which some families spell otherwise.
void read_llama_sizes(const JsonValue& root, const LlamaDefaults& defaults, HfConfig& config);
/// `attention_bias`, of all four projections.
void read_attention_bias(const JsonValue& root, bool otherwise, HfConfig& config);

/// The keys that a position sees by `sliding_window`; 0 where that is null.
std::int64_t window_width(const JsonValue& root);
/// The width as Qwen has it: 0 unless use_sliding_window.
std::int64_t flagged_window_width(const JsonValue& root);
/// layer_types as windows; false where the file has none. Only full attention where `width` is 0.
bool read_layer_types(const JsonValue& root, std::int64_t width, HfConfig& config);
/// As layer_types says, or else a window in the layers from max_window_layers on.
void read_late_windows(const JsonValue& root, HfConfig& config);

/// Number of experts, how many each token has, and the routers' own loss.
void read_experts(const JsonValue& root, HfConfig& config);

/// "model.layers.3.self_attn." and the like.
std::string layer_name(std::int64_t layer, std::string_view part);
/// Names of a layer without norms of q and k, without its MLP.
LayerNames llama_attention_names(std::int64_t layer, const HfConfig& config);
/// The same with norms of q and k.
LayerNames qwen3_attention_names(std::int64_t layer, const HfConfig& config);
/// Adds the names of a gated MLP.
LayerNames with_mlp(LayerNames names, std::int64_t layer, const HfConfig& config);

/// The decoder around such layers, with experts where the config has some; `names` of each layer.
DecoderSpec llama_decoder(const HfConfig& config,
                          LayerNames (*names)(std::int64_t layer, const HfConfig& config));
/// With the names of Llama itself.
DecoderSpec describe_llama(const HfConfig& config);

}  // namespace tandem
