// GPT-2: LayerNorm, learnt positions, biases everywhere, tanh GELU, matrices as [in, out].
#include <fmt/format.h>

#include "models/families/family.hpp"
#include "models/io/hf_fields.hpp"

namespace tandem {
namespace {

void read_config(const JsonValue& root, HfConfig& config) {
  config.vocab_size = size_at(root, "vocab_size", kMostTokens);
  config.hidden_size = size_at(root, "n_embd", kMostWidth);
  config.num_hidden_layers = size_at(root, "n_layer", kMostLayers);
  config.num_attention_heads = size_at(root, "n_head", kMostWidth);
  config.num_key_value_heads = config.num_attention_heads;
  if (config.hidden_size % config.num_attention_heads != 0) {
    throw root.error(fmt::format("n_embd is {}, not a multiple of n_head {}", config.hidden_size,
                                 config.num_attention_heads));
  }
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.intermediate_size = size_or(root, "n_inner", kMostWidth, 4 * config.hidden_size);
  config.max_position_embeddings = size_at(root, "n_positions", kMostPositions);
  config.norm_eps = positive_or(root, "layer_norm_epsilon", 1e-5);
  config.tie_word_embeddings = bool_or(root, "tie_word_embeddings", true);
  require(root, "activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  config.dropout = {.embedding = rate_or(root, "embd_pdrop", 0.1),
                    .attention = rate_or(root, "attn_pdrop", 0.1),
                    .residual = rate_or(root, "resid_pdrop", 0.1)};
}

std::vector<std::string> weight_and_bias(const std::string& name) {
  return {name + ".weight", name + ".bias"};
}

LayerNames names(std::int64_t layer) {
  const std::string block = fmt::format("transformer.h.{}.", layer);
  LayerNames n;
  n.attention_norm = weight_and_bias(block + "ln_1");
  n.qkv = {block + "attn.c_attn.weight"};
  n.qkv_bias = {block + "attn.c_attn.bias"};
  n.attention_out = {block + "attn.c_proj.weight"};
  n.attention_out_bias = {block + "attn.c_proj.bias"};
  n.mlp_norm = weight_and_bias(block + "ln_2");
  n.up = {block + "mlp.c_fc.weight"};
  n.up_bias = {block + "mlp.c_fc.bias"};
  n.down = {block + "mlp.c_proj.weight"};
  n.down_bias = {block + "mlp.c_proj.bias"};
  return n;
}

DecoderSpec describe(const HfConfig& c) {
  DecoderSpec spec;
  spec.vocabulary = c.vocab_size;
  spec.layers = c.num_hidden_layers;
  spec.block = {.hidden = c.hidden_size,
                .intermediate = c.intermediate_size,
                .norm = NormKind::kLayer,
                .norm_eps = c.norm_eps,
                .attention = {.heads = c.num_attention_heads,
                              .kv_heads = c.num_attention_heads,
                              .head_dim = c.head_dim},
                .activation = Activation::kGeluTanh,
                .input_major = true,
                .dropout = {.rates = c.dropout}};
  spec.layer_names = names;
  spec.embedding = "transformer.wte.weight";
  spec.positions = "transformer.wpe.weight";
  spec.max_positions = c.max_position_embeddings;
  spec.final_norm = weight_and_bias("transformer.ln_f");
  spec.output = c.tie_word_embeddings ? "" : "lm_head.weight";
  // GPT-2's input embedding is built without padding_idx: every row learns.
  return spec;
}

constexpr std::array kMembers = {used("vocab_size", "50257"),
                                 used("n_embd", "768"),
                                 used("n_layer", "12"),
                                 used("n_head", "12"),
                                 used("n_positions", "1024"),
                                 used("n_inner"),
                                 used("activation_function", "\"gelu_new\""),
                                 used("layer_norm_epsilon", "1e-05"),
                                 used("embd_pdrop", "0.1"),
                                 used("attn_pdrop", "0.1"),
                                 used("resid_pdrop", "0.1"),
                                 used("tie_word_embeddings", "true"),
                                 also("hidden_size", "n_embd"),
                                 also("num_hidden_layers", "n_layer"),
                                 also("num_attention_heads", "n_head"),
                                 also("max_position_embeddings", "n_positions"),
                                 fixed("scale_attn_weights", "true"),
                                 fixed("scale_attn_by_inverse_layer_idx", "false"),
                                 fixed("reorder_and_upcast_attn", "false"),
                                 fixed("add_cross_attention", "false"),
                                 harmless("n_ctx"),
                                 harmless("summary_activation"),
                                 harmless("summary_first_dropout"),
                                 harmless("summary_proj_to_labels"),
                                 harmless("summary_type"),
                                 harmless("summary_use_proj"),
                                 harmless("classifier_dropout"),
                                 harmless("hidden_dropout"),
                                 harmless("summary_last_dropout")};

// Causal masks.
constexpr std::array<std::string_view, 2> kMasks = {".attn.bias", ".attn.masked_bias"};

}  // namespace

constinit const Family kGpt2 = {.model_type = "gpt2",
                                .read_config = read_config,
                                .describe = describe,
                                .optional_prefix = "transformer.",
                                .members = kMembers,
                                .extras = kMasks};

}  // namespace tandem
