#include "models/families/llama_like.hpp"

#include <memory>

#include <fmt/format.h>

namespace tandem {
namespace {

void read_heads(const JsonValue& root, HfConfig& config) {
  config.num_attention_heads = size_at(root, "num_attention_heads", kMostWidth);
  config.num_key_value_heads =
      size_or(root, "num_key_value_heads", kMostWidth, config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw root.error(
        fmt::format("num_attention_heads is {}, not a multiple of num_key_value_heads {}",
                    config.num_attention_heads, config.num_key_value_heads));
  }
  config.head_dim = size_or(root, "head_dim", kMostHeadSize, 0);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      throw root.error(
          fmt::format("hidden_size is {}, not a multiple of num_attention_heads {}, and there is "
                      "no head_dim",
                      config.hidden_size, config.num_attention_heads));
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
}

std::vector<std::string> projections(const std::string& attention, std::string_view what) {
  std::vector<std::string> names;
  for (const char projection : {'q', 'k', 'v'}) {
    names.push_back(fmt::format("{}{}_proj.{}", attention, projection, what));
  }
  return names;
}

}  // namespace

void read_llama_sizes(const JsonValue& root, const LlamaDefaults& defaults, HfConfig& config) {
  config.vocab_size = size_at(root, "vocab_size", kMostTokens);
  config.hidden_size = size_at(root, "hidden_size", kMostWidth);
  config.num_hidden_layers = size_at(root, "num_hidden_layers", kMostLayers);
  read_heads(root, config);
  config.intermediate_size = size_at(root, "intermediate_size", kMostWidth);
  config.max_position_embeddings = size_at(root, "max_position_embeddings", kMostPositions);
  config.norm_eps = positive(root.at("rms_norm_eps"));
  config.tie_word_embeddings = bool_or(root, "tie_word_embeddings", defaults.tied);
  config.pad_token_id = defaults.pad_token_id;
  config.dropout.attention = rate_or(root, "attention_dropout", 0.0);
}

void read_llama_like(const JsonValue& root, const LlamaDefaults& defaults, HfConfig& config) {
  read_llama_sizes(root, defaults, config);
  require(root, "hidden_act", {"silu", "swish"});
  config.rope = read_rope(root, config, defaults.rope);
}

void read_attention_bias(const JsonValue& root, bool otherwise, HfConfig& config) {
  config.attention_bias = bool_or(root, "attention_bias", otherwise);
  config.attention_out_bias = config.attention_bias;
}

std::int64_t window_width(const JsonValue& root) {
  return size_or(root, "sliding_window", kMostPositions, 0);
}

std::int64_t flagged_window_width(const JsonValue& root) {
  const std::int64_t width = window_width(root);
  return bool_or(root, "use_sliding_window", false) ? width : 0;
}

bool read_layer_types(const JsonValue& root, std::int64_t width, HfConfig& config) {
  const auto types = root.find("layer_types");
  if (!types) {
    return false;
  }
  const auto list = types->items();
  if (static_cast<std::int64_t>(list.size()) != config.num_hidden_layers) {
    throw types->error(fmt::format("has {} entries, num_hidden_layers is {}", list.size(),
                                   config.num_hidden_layers));
  }
  for (const JsonValue& type : list) {
    const bool slides = type.string() == "sliding_attention";
    if ((!slides && type.string() != "full_attention") || (slides && width == 0)) {
      throw type.wrong(width == 0 ? "\"full_attention\" (no sliding window is set)"
                                  : "\"full_attention\" or \"sliding_attention\"");
    }
    config.windows.push_back(slides ? width : 0);
  }
  return true;
}

void read_late_windows(const JsonValue& root, HfConfig& config) {
  const std::int64_t width = flagged_window_width(root);
  if (!read_layer_types(root, width, config)) {
    const auto late = root.find("max_window_layers");
    const std::int64_t first = late ? late->integer(0, kMostLayers) : 28;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      config.windows.push_back(layer >= first ? width : 0);
    }
  }
}

void read_experts(const JsonValue& root, HfConfig& config) {
  config.experts = size_at(root, "num_local_experts", kMostWidth);
  config.experts_per_token = size_at(root, "num_experts_per_tok", config.experts);
  config.expert_size = config.intermediate_size;
  const auto loss = root.find("router_aux_loss_coef");
  config.router_aux_loss_coef = loss ? loss->number() : 0.001;
  if (config.router_aux_loss_coef < 0) {
    throw loss->wrong("a number of at least 0");
  }
  config.output_router_logits = bool_or(root, "output_router_logits", false);
}

std::string layer_name(std::int64_t layer, std::string_view part) {
  return fmt::format("model.layers.{}.{}", layer, part);
}

LayerNames llama_attention_names(std::int64_t layer, const HfConfig& c) {
  const std::string attention = layer_name(layer, "self_attn.");
  LayerNames n;
  n.attention_norm = {layer_name(layer, "input_layernorm.weight")};
  n.qkv = projections(attention, "weight");
  n.attention_out = {attention + "o_proj.weight"};
  if (c.attention_bias) {
    n.qkv_bias = projections(attention, "bias");
  }
  if (c.attention_out_bias) {
    n.attention_out_bias = {attention + "o_proj.bias"};
  }
  n.mlp_norm = {layer_name(layer, "post_attention_layernorm.weight")};
  return n;
}

LayerNames qwen3_attention_names(std::int64_t layer, const HfConfig& c) {
  LayerNames n = llama_attention_names(layer, c);
  n.qk_norm = {layer_name(layer, "self_attn.q_norm.weight"),
               layer_name(layer, "self_attn.k_norm.weight")};
  return n;
}

LayerNames with_mlp(LayerNames n, std::int64_t layer, const HfConfig& c) {
  const std::string mlp = layer_name(layer, "mlp.");
  n.up = {mlp + "gate_proj.weight", mlp + "up_proj.weight"};
  n.down = {mlp + "down_proj.weight"};
  if (c.mlp_bias) {
    n.up_bias = {mlp + "gate_proj.bias", mlp + "up_proj.bias"};
    n.down_bias = {mlp + "down_proj.bias"};
  }
  return n;
}

DecoderSpec llama_decoder(const HfConfig& c,
                          LayerNames (*names)(std::int64_t layer, const HfConfig& config)) {
  DecoderSpec spec;
  spec.vocabulary = c.vocab_size;
  spec.layers = c.num_hidden_layers;
  spec.block = {.hidden = c.hidden_size,
                .intermediate = c.intermediate_size,
                .norm = NormKind::kRms,
                .norm_eps = c.norm_eps,
                .attention = {.heads = c.num_attention_heads,
                              .kv_heads = c.num_key_value_heads,
                              .head_dim = c.head_dim,
                              .norm_eps = c.norm_eps,
                              .rotary = std::make_shared<RotaryTable>(c.rope),
                              .scale = c.attention_scale},
                .activation = Activation::kSwiGlu,
                .dropout = {.rates = c.dropout},
                .experts = {.count = c.experts,
                            .per_token = c.experts_per_token,
                            .width = c.expert_size,
                            .normalised = c.norm_topk_prob}};
  spec.windows = c.windows;
  if (c.window_rope) {
    spec.window_rotary = std::make_shared<RotaryTable>(*c.window_rope);
  }
  spec.layer_names = [c, names](std::int64_t layer) { return names(layer, c); };
  spec.router_loss = c.router_loss();
  spec.embedding = "model.embed_tokens.weight";
  spec.final_norm = {"model.norm.weight"};
  spec.output = c.tie_word_embeddings ? "" : "lm_head.weight";
  spec.padding = c.pad_token_id;
  return spec;
}

DecoderSpec describe_llama(const HfConfig& c) {
  return llama_decoder(c, [](std::int64_t layer, const HfConfig& config) {
    return with_mlp(llama_attention_names(layer, config), layer, config);
  });
}

}  // namespace tandem
