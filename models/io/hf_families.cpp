#include "models/io/hf_families.hpp"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "models/kernels/activation.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMostWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMostLayers = 10'000;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;
constexpr std::int64_t kMostHeadDim = 512;  // what attention's kernel takes

/// Which layers see a window of keys alone.
enum class Windows : std::uint8_t {
  kNone,
  kAll,          // with sliding_window, Phi-3
  kFlaggedAll,   // with use_sliding_window, Qwen3-MoE
  kFlaggedLate,  // with use_sliding_window, from max_window_layers on or by layer_types, Qwen3
  kAlternating,  // every other one or by layer_types, gpt-oss
};

/// What a config.json of the family may leave out, and the features it may ask for.
struct LlamaLike {
  std::string_view model_type;
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  std::int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::optional<std::int64_t> pad_token_id = std::nullopt;
  bool attention_bias = false;
  Windows windows = Windows::kNone;
};

constexpr std::array kLlamaLike = {
    LlamaLike{.model_type = "llama"},
    LlamaLike{
        .model_type = "phi3", .norm_eps = 1e-5, .pad_token_id = 32000, .windows = Windows::kAll},
    LlamaLike{.model_type = "seed_oss",
              .head_dim = 128,
              .kv_heads = 8,
              .pad_token_id = 1,
              .attention_bias = true},
    LlamaLike{
        .model_type = "qwen3", .head_dim = 128, .kv_heads = 32, .windows = Windows::kFlaggedLate},
    LlamaLike{.model_type = "qwen3_moe", .kv_heads = 4, .windows = Windows::kFlaggedAll},
    LlamaLike{.model_type = "gpt_oss",
              .norm_eps = 1e-5,
              .rope_theta = 150000.0,
              .head_dim = 64,
              .kv_heads = 8,
              .attention_bias = true,
              .windows = Windows::kAlternating}};

std::int64_t size_at(const JsonValue& root, std::string_view key, std::int64_t at_most) {
  return root.at(key).integer(1, at_most);
}

std::int64_t size_or(const JsonValue& root, std::string_view key, std::int64_t at_most,
                     std::int64_t otherwise) {
  const auto value = root.find(key);
  return value ? value->integer(1, at_most) : otherwise;
}

bool bool_or(const JsonValue& root, std::string_view key, bool otherwise) {
  const auto value = root.find(key);
  return value ? value->boolean() : otherwise;
}

double positive_number_or(const JsonValue& root, std::string_view key, double otherwise) {
  const auto value = root.find(key);
  if (value && value->number() <= 0) {
    throw value->wrong("a number above 0");
  }
  return value ? value->number() : otherwise;
}

/// Features whose presence changes the computation in a way the models here do not follow.
void refuse(const JsonValue& root, std::string_view key, bool unsupported_value) {
  const auto value = root.find(key);
  if (value && value->boolean() == unsupported_value) {
    throw value->wrong(fmt::format("{} (the other way of computing is not supported)",
                                   unsupported_value ? "false" : "true"));
  }
}

double rate_or(const JsonValue& root, std::string_view key, double otherwise) {
  const auto value = root.find(key);
  const double rate = value ? value->number() : otherwise;
  if (!(rate >= 0 && rate < 1)) {
    throw value->wrong("a rate from 0 to below 1");
  }
  return rate;
}

void need_activation(const JsonValue& root, std::string_view key,
                     std::initializer_list<std::string_view> known, HfConfig& config) {
  const JsonValue value = root.at(key);
  config.activation = std::string(value.string());
  if (std::find(known.begin(), known.end(), config.activation) == known.end()) {
    throw value.wrong(fmt::format("one of {}", fmt::join(known, ", ")));
  }
}

void read_sizes(const JsonValue& root, const LlamaLike& family, HfConfig& config) {
  config.vocab_size = size_at(root, "vocab_size", kMostTokens);
  config.hidden_size = size_at(root, "hidden_size", kMostWidth);
  config.num_hidden_layers = size_at(root, "num_hidden_layers", kMostLayers);
  config.num_attention_heads = size_at(root, "num_attention_heads", kMostWidth);
  const bool has_kv_heads =
      root.object().at_key("num_key_value_heads").error() == simdjson::SUCCESS;
  config.num_key_value_heads =
      size_or(root, "num_key_value_heads", kMostWidth,
              has_kv_heads || family.kv_heads == 0 ? config.num_attention_heads : family.kv_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw root.error(
        fmt::format("num_attention_heads is {}, not a multiple of num_key_value_heads {}",
                    config.num_attention_heads, config.num_key_value_heads));
  }
  config.head_dim = size_or(root, "head_dim", kMostHeadDim, family.head_dim);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      throw root.error(
          fmt::format("hidden_size is {}, not a multiple of num_attention_heads {}, and there is "
                      "no head_dim",
                      config.hidden_size, config.num_attention_heads));
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  config.intermediate_size = size_at(root, "intermediate_size", kMostWidth);
  config.max_position_embeddings = size_at(root, "max_position_embeddings", kMostPositions);
  config.norm_eps = positive_number_or(root, "rms_norm_eps", family.norm_eps);
  config.tie_word_embeddings = bool_or(root, "tie_word_embeddings", false);
}

/// layer_types as windows; nothing where the file has none. A full window where `width` is 0.
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

void read_windows(const JsonValue& root, Windows windows, HfConfig& config) {
  const bool flagged = windows == Windows::kFlaggedAll || windows == Windows::kFlaggedLate;
  const auto value = root.find("sliding_window");
  std::int64_t width = value ? value->integer(1, kMostPositions) : 0;
  const bool is_null =
      !value && root.object().at_key("sliding_window").error() == simdjson::SUCCESS;
  if (!value && !is_null && windows != Windows::kAll) {
    width = windows == Windows::kAlternating ? 128 : 4096;  // the families' defaults
  }
  if (windows == Windows::kNone || (flagged && !bool_or(root, "use_sliding_window", false))) {
    width = 0;
  }
  const bool by_layer = windows == Windows::kFlaggedLate || windows == Windows::kAlternating;
  if (windows == Windows::kAlternating && width == 0) {
    throw root.error("sliding_window is null, this family needs a width");
  }
  if (!(by_layer && read_layer_types(root, width, config)) && width > 0) {
    const auto late = root.find("max_window_layers");
    const std::int64_t first = late ? late->integer(0, kMostLayers) : 28;
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      const bool slides = windows == Windows::kFlaggedLate   ? layer >= first
                          : windows == Windows::kAlternating ? layer % 2 == 0
                                                             : true;
      config.windows.push_back(slides ? width : 0);
    }
  }
  if (std::ranges::count(config.windows, 0) == std::ssize(config.windows)) {
    config.windows.clear();
  }
}

void read_experts(const JsonValue& root, HfConfig& config) {
  const auto count = root.find("num_local_experts");
  config.experts = count ? count->integer(1, kMostWidth) : size_at(root, "num_experts", kMostWidth);
  config.experts_per_token = root.at("num_experts_per_tok").integer(1, config.experts);
  config.expert_size = size_or(root, "moe_intermediate_size", kMostWidth, config.intermediate_size);
  config.norm_topk_prob = bool_or(root, "norm_topk_prob", false);
  const auto loss = root.find("router_aux_loss_coef");
  config.router_aux_loss_coef = loss ? loss->number() : 0.001;
  if (config.router_aux_loss_coef < 0) {
    throw loss->wrong("a number of at least 0");
  }
  config.output_router_logits = bool_or(root, "output_router_logits", false);
  const std::int64_t every = size_or(root, "decoder_sparse_step", kMostLayers, 1);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if ((layer + 1) % every != 0) {
      config.dense_layers.push_back(layer);
    }
  }
  if (const auto dense = root.find("mlp_only_layers")) {
    for (const JsonValue& layer : dense->items()) {
      config.dense_layers.push_back(layer.integer(0, config.num_hidden_layers - 1));
    }
  }
}

/// gpt-oss: sinks, clamped experts, and weights of four bits, which are the only quantized ones
/// that are known.
void read_gpt_oss(const JsonValue& root, HfConfig& config) {
  config.attention_sinks = true;
  config.swiglu_limit = positive_number_or(root, "swiglu_limit", kGateLimit);
  if (config.swiglu_limit != kGateLimit) {
    throw root.at("swiglu_limit").wrong("7 (other limits are not supported)");
  }
  config.norm_topk_prob = true;  // a softmax over the chosen ones
  if (const auto packed = root.find("quantization_config")) {
    const JsonValue method = packed->at("quant_method");
    if (method.string() != "mxfp4") {
      throw method.wrong("\"mxfp4\" (other quantized checkpoints are not supported)");
    }
    config.packed_experts = true;
  }
  if (!root.find("rope_scaling") && !root.find("rope_parameters")) {
    throw root.error("rope_scaling is missing, rotary positions of this family are scaled");
  }
}

void read_llama_like(const JsonValue& root, const LlamaLike& family, HfConfig& config) {
  const std::string_view type = family.model_type;
  const bool is_phi3 = type == "phi3";
  read_sizes(root, family, config);
  config.pad_token_id = family.pad_token_id;
  need_activation(root, "hidden_act", {"silu", "swish"}, config);
  if (is_phi3) {
    refuse(root, "attention_bias", true);
  } else {
    config.attention_bias = bool_or(root, "attention_bias", family.attention_bias);
    config.attention_out_bias =
        type == "seed_oss" ? bool_or(root, "attention_out_bias", false) : config.attention_bias;
  }
  config.mlp_bias = (type == "llama" || type == "seed_oss") && bool_or(root, "mlp_bias", false);
  config.rope = read_rope(root, config, {.theta = family.rope_theta, .is_phi3 = is_phi3});
  read_windows(root, family.windows, config);
  if (type == "qwen3_moe" || type == "gpt_oss") {
    read_experts(root, config);
  }
  if (type == "gpt_oss") {
    read_gpt_oss(root, config);
  }
  const double usual = type == "seed_oss" ? 0.1 : 0.0;
  config.dropout.attention = rate_or(root, "attention_dropout", usual);
  if (type == "seed_oss") {
    config.dropout.residual = rate_or(root, "residual_dropout", usual);
  } else if (is_phi3) {
    config.dropout.residual = rate_or(root, "resid_pdrop", 0.0);
    (void)rate_or(root, "embd_pdrop", 0.0);  // Transformers reads it and drops nothing by it
  }
}

void read_gpt2(const JsonValue& root, HfConfig& config) {
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
  config.norm_eps = positive_number_or(root, "layer_norm_epsilon", 1e-5);
  config.tie_word_embeddings = bool_or(root, "tie_word_embeddings", true);
  config.attention_bias = true;
  need_activation(root, "activation_function", {"gelu_new", "gelu_pytorch_tanh"}, config);
  refuse(root, "scale_attn_weights", false);
  refuse(root, "scale_attn_by_inverse_layer_idx", true);
  refuse(root, "reorder_and_upcast_attn", true);
  refuse(root, "add_cross_attention", true);
  constexpr double kUsual = 0.1;
  config.dropout = {.embedding = rate_or(root, "embd_pdrop", kUsual),
                    .attention = rate_or(root, "attn_pdrop", kUsual),
                    .residual = rate_or(root, "resid_pdrop", kUsual)};
}

}  // namespace

const std::vector<std::string>& known_model_types() {
  static const std::vector<std::string> kTypes = [] {
    std::vector<std::string> types = {"gpt2"};
    for (const LlamaLike& family : kLlamaLike) {
      types.emplace_back(family.model_type);
    }
    std::ranges::sort(types);
    return types;
  }();
  return kTypes;
}

void read_family(const JsonValue& root, HfConfig& config) {
  const JsonValue model_type = root.at("model_type");
  config.model_type = std::string(model_type.string());
  const auto* family =
      std::ranges::find(kLlamaLike, std::string_view(config.model_type), &LlamaLike::model_type);
  if (family == kLlamaLike.end() && config.model_type != "gpt2") {
    throw model_type.error(fmt::format("unknown architecture \"{}\", known are: {}",
                                       config.model_type, fmt::join(known_model_types(), ", ")));
  }
  if (const auto quantized = root.find("quantization_config");
      quantized && config.model_type != "gpt_oss") {
    throw quantized->error("quantized checkpoints are not supported: take the full-size weights");
  }
  if (family == kLlamaLike.end()) {
    read_gpt2(root, config);
  } else {
    read_llama_like(root, *family, config);
  }
}

}  // namespace tandem
