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
/// Further shared members of families with experts.
inline constexpr std::array kExpertMembers = {also("num_experts", "num_local_experts"),
                                              used("router_aux_loss_coef", "0.001"),
                                              used("output_router_logits", "false")};

/// Values of members that a config.json may leave out, and that a family's list cannot give because
/// they depend on other members.
struct LlamaDefaults {
  std::optional<std::int64_t> pad_token_id = std::nullopt;
  RopeDefaults rope = {};
  bool tied = false;
};

/// Reads sizes, activation, rotary positions and attention's dropout. Each family reads biases and
/// windows itself.
void read_llama_like(const JsonValue& root, const LlamaDefaults& defaults, HfConfig& config);
/// The same without activation and rotary positions, which some families spell differently.
void read_llama_sizes(const JsonValue& root, const LlamaDefaults& defaults, HfConfig& config);
/// Reads `attention_bias`, which holds for all four projections.
void read_attention_bias(const JsonValue& root, bool otherwise, HfConfig& config);

/// Returns `sliding_window`, the number of keys that a position sees; 0 if it is null.
std::int64_t window_width(const JsonValue& root);
/// Returns the width by Qwen's rule: 0 unless use_sliding_window is true.
std::int64_t flagged_window_width(const JsonValue& root);
/// Reads layer_types as windows; returns false if the file has none. Throws user_error for a layer
/// with a window if `width` is 0.
bool read_layer_types(const JsonValue& root, std::int64_t width, HfConfig& config);
/// Reads windows from layer_types, or else gives one to the layers from max_window_layers on.
void read_late_windows(const JsonValue& root, HfConfig& config);

/// Reads the number of experts, the experts of a token, and the routers' own loss.
void read_experts(const JsonValue& root, HfConfig& config);

/// Returns "model.layers.3.self_attn." and the like.
std::string layer_name(std::int64_t layer, std::string_view part);
/// Returns the names of a layer, without norms of q and k and without the MLP.
LayerNames llama_attention_names(std::int64_t layer, const HfConfig& config);
/// The same with norms of q and k.
LayerNames qwen3_attention_names(std::int64_t layer, const HfConfig& config);
/// Adds the names of a gated MLP.
LayerNames with_mlp(LayerNames names, std::int64_t layer, const HfConfig& config);

/// Returns the decoder of such layers, with experts if the config has some; `names` returns the
/// names of one layer.
DecoderSpec llama_decoder(const HfConfig& config,
                          LayerNames (*names)(std::int64_t layer, const HfConfig& config));
/// The same with the names of Llama itself.
DecoderSpec describe_llama(const HfConfig& config);

}  // namespace tandem
