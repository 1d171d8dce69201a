// The text model of Gemma 3: norms around one on both sides of attention and MLP, norms of q and k,
// scaled embeddings, a tanh-GELU gate, and windows in most layers, which have rotary positions of
// their own.
#include <cmath>
#include <memory>

#include "models/families/llama_like.hpp"

namespace tandem {
namespace {

constexpr double kTheta = 1e6, kWindowTheta = 1e4;

/// layer_types, or else every `sliding_window_pattern`-th layer sees all keys.
void read_windows(const JsonValue& root, HfConfig& config) {
  const std::int64_t width = window_width(root);
  if (read_layer_types(root, width, config)) {
    return;
  }
  const std::int64_t pattern = size_or(root, "sliding_window_pattern", kMostLayers, 6);
  if (width == 0 && pattern > 1) {
    throw root.error("sliding_window is null, this family needs a width");
  }
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    config.windows.push_back((layer + 1) % pattern == 0 ? 0 : width);
  }
}

/// Published files have rope_theta and rope_scaling for layers that see all keys and
/// rope_local_base_freq for the others; Transformers 5 writes rope_parameters by layer type.
void read_positions(const JsonValue& root, HfConfig& config) {
  const auto by_type = root.find("rope_parameters");
  const auto scaling = root.find("rope_scaling");
  if (by_type && scaling) {
    throw root.error("rope_scaling and rope_parameters are both there, one of them is enough");
  }
  const auto of = [&](std::string_view type) {
    return by_type ? by_type->find(type) : std::optional<JsonValue>();
  };
  const auto full = of("full_attention");
  const auto sliding = of("sliding_attention");
  if (by_type && !full && !sliding) {
    throw by_type->error("has neither full_attention nor sliding_attention, the layers' types");
  }
  config.rope = read_rope_object(root, scaling ? scaling : full, config,
                                 {.theta = positive_or(root, "rope_theta", kTheta)});
  config.window_rope = read_rope_object(
      root, sliding, config, {.theta = positive_or(root, "rope_local_base_freq", kWindowTheta)});
  if (config.window_rope->kind == RotaryKind::kLongRope) {
    throw sliding->error("longrope is not supported in layers with a window");
  }
}

void read_config(const JsonValue& root, HfConfig& config) {
  read_llama_sizes(root, {.pad_token_id = 0, .tied = true}, config);
  require(root, "hidden_activation", {"gelu_pytorch_tanh", "gelu_new"});
  read_attention_bias(root, false, config);
  config.attention_scale = 1 / std::sqrt(positive_or(root, "query_pre_attn_scalar", 256));
  read_windows(root, config);
  read_positions(root, config);
}

LayerNames names(std::int64_t layer, const HfConfig& c) {
  LayerNames n = with_mlp(qwen3_attention_names(layer, c), layer, c);
  n.attention_out_norm = {layer_name(layer, "post_attention_layernorm.weight")};
  n.mlp_norm = {layer_name(layer, "pre_feedforward_layernorm.weight")};
  n.down_norm = {layer_name(layer, "post_feedforward_layernorm.weight")};
  return n;
}

DecoderSpec describe(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c, names);
  spec.block.norm = NormKind::kRmsAroundOne;
  spec.block.attention.norm = NormKind::kRmsAroundOne;
  spec.block.activation = Activation::kGeGluTanh;
  spec.embedding_scale = std::sqrt(static_cast<double>(c.hidden_size));
  return spec;
}

// gemma-3-4b and larger: with eyes. Their text_config says only what differs from 2025's defaults.
constexpr std::array<std::string_view, 4> kEyes = {"vision_tower.", "multi_modal_projector.",
                                                   "model.vision_tower.",
                                                   "model.multi_modal_projector."};
// Since Transformers 4.52, which before began with language_model.model, and without a head.
constexpr std::array kSpellings = {OtherSpelling{"model.", "model.language_model."},
                                   OtherSpelling{"model.", "language_model."}};
constexpr std::string_view kDefaults =
    R"("architectures": ["Gemma3ForCausalLM"], "vocab_size": 262208, "num_attention_heads": 8,
       "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072)";

// attn_logit_softcapping: Transformers reads it and computes nothing by it.
constexpr auto kMembers =
    joined(kLlamaMembers, std::array{used("vocab_size", "262208"),
                                     used("hidden_size", "2304"),
                                     used("intermediate_size", "9216"),
                                     used("num_hidden_layers", "26"),
                                     used("num_attention_heads", "8"),
                                     used("num_key_value_heads", "4"),
                                     used("head_dim", "256"),
                                     used("hidden_activation", "\"gelu_pytorch_tanh\""),
                                     used("max_position_embeddings", "131072"),
                                     used("rms_norm_eps", "1e-06"),
                                     used("attention_bias", "false"),
                                     used("query_pre_attn_scalar", "256"),
                                     used("sliding_window", "4096"),
                                     used("sliding_window_pattern"),
                                     used("layer_types"),
                                     used("rope_local_base_freq"),
                                     fixed("final_logit_softcapping", "null"),
                                     fixed("use_bidirectional_attention", "false"),
                                     harmless("attn_logit_softcapping"),
                                     harmless("_sliding_window_pattern"),
                                     harmless("hidden_act")});

}  // namespace

constinit const Family kGemma3 = {.model_type = "gemma3_text",
                                  .read_config = read_config,
                                  .describe = describe,
                                  .fresh_norm = 0,
                                  .whole_type = "gemma3",
                                  .part_prefix = "language_model.",
                                  .other_parts = kEyes,
                                  .part_defaults = kDefaults,
                                  .spellings = kSpellings,
                                  .members = kMembers};

}  // namespace tandem
