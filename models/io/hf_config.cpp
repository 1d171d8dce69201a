#include "models/io/hf_config.hpp"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

#include "models/io/file.hpp"
#include "models/io/json.hpp"

namespace tandem {
namespace {

constexpr std::uint64_t kMostConfigBytes = 4u << 20;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMostWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMostLayers = 10'000;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;

std::int64_t size_at(const JsonValue& root, std::string_view key, std::int64_t at_most) {
  return root.at(key).integer(1, at_most);
}

double number_or(const JsonValue& root, std::string_view key, double otherwise) {
  const auto value = root.find(key);
  return value ? value->number() : otherwise;
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

std::optional<std::int64_t> token_id(const JsonValue& root, std::string_view key,
                                     const HfConfig& config) {
  const auto value = root.find(key);
  if (!value) {
    return std::nullopt;
  }
  return value->integer(0, config.vocab_size - 1);
}

void read_tokens(const JsonValue& root, HfConfig& config) {
  config.pad_token_id = token_id(root, "pad_token_id", config);
  config.bos_token_id = token_id(root, "bos_token_id", config);
  const auto eos = root.find("eos_token_id");
  if (eos && eos->is_array()) {
    for (const JsonValue& id : eos->items()) {
      config.eos_token_ids.push_back(id.integer(0, config.vocab_size - 1));
    }
  } else if (eos) {
    config.eos_token_ids.push_back(eos->integer(0, config.vocab_size - 1));
  }
}

void read_dropout(const JsonValue& root, std::string_view key, double otherwise, HfConfig& config,
                  HfConfigOptions options) {
  const auto value = root.find(key);
  const double rate = value ? value->number() : otherwise;
  if (rate < 0 || rate > 1) {
    throw value->wrong("a rate from 0 to 1");
  }
  if (rate > 0 && !options.accept_dropout && !options.only_sizes) {
    throw root.error(fmt::format("{} is {}{}, dropout is not supported: set it to 0.0 in the file",
                                 key, rate, value ? "" : " (the default where it is missing)"));
  }
  config.dropout = std::max(config.dropout, rate);
}

void read_rope(const JsonValue& root, HfConfig& config) {
  config.rope_type = "default";
  config.rope_theta = positive_number_or(root, "rope_theta", 10000.0);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = root.find(key);
    if (!rope) {
      continue;
    }
    for (const std::string_view name : {"rope_type", "type"}) {
      const auto type = rope->find(name);
      if (type && type->string() != "default") {
        throw type->wrong("\"default\" (scaled rotary embeddings are not supported)");
      }
    }
    config.rope_theta = positive_number_or(*rope, "rope_theta", config.rope_theta);
    if (const auto part = rope->find("partial_rotary_factor"); part && part->number() != 1.0) {
      throw part->wrong("1 (partial rotary embeddings are not supported)");
    }
  }
}

void refuse_sliding_window(const JsonValue& root, const HfConfig& config) {
  refuse(root, "use_sliding_window", true);
  const auto types = root.find("layer_types");
  if (!types) {
    return;
  }
  const auto list = types->items();
  if (static_cast<std::int64_t>(list.size()) != config.num_hidden_layers) {
    throw types->error(fmt::format("has {} entries, num_hidden_layers is {}", list.size(),
                                   config.num_hidden_layers));
  }
  for (const JsonValue& type : list) {
    if (type.string() != "full_attention") {
      throw type.wrong("\"full_attention\" (sliding windows are not supported)");
    }
  }
}

void need_activation(const JsonValue& root, std::string_view key, HfConfig& config,
                     std::initializer_list<std::string_view> known) {
  const JsonValue value = root.at(key);
  config.activation = std::string(value.string());
  if (std::find(known.begin(), known.end(), config.activation) == known.end()) {
    throw value.wrong(fmt::format("one of {}", fmt::join(known, ", ")));
  }
}

/// What all families with Llama's keys have in common.
void read_llama_sizes(const JsonValue& root, HfConfig& config) {
  config.vocab_size = size_at(root, "vocab_size", kMostTokens);
  config.hidden_size = size_at(root, "hidden_size", kMostWidth);
  config.num_hidden_layers = size_at(root, "num_hidden_layers", kMostLayers);
  config.num_attention_heads = size_at(root, "num_attention_heads", kMostWidth);
  const auto kv_heads = root.find("num_key_value_heads");
  config.num_key_value_heads =
      kv_heads ? kv_heads->integer(1, kMostWidth) : config.num_attention_heads;
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw root.error(
        fmt::format("num_attention_heads is {}, not a multiple of num_key_value_heads {}",
                    config.num_attention_heads, config.num_key_value_heads));
  }
  config.intermediate_size = size_at(root, "intermediate_size", kMostWidth);
  config.max_position_embeddings = size_at(root, "max_position_embeddings", kMostPositions);
  config.norm_eps = positive_number_or(root, "rms_norm_eps", 1e-6);
  config.tie_word_embeddings = bool_or(root, "tie_word_embeddings", false);
  config.attention_bias = bool_or(root, "attention_bias", false);
}

std::int64_t head_dim_or(const JsonValue& root, std::int64_t otherwise) {
  const auto head_dim = root.find("head_dim");
  return head_dim ? head_dim->integer(1, kMostWidth) : otherwise;
}

void read_qwen3(const JsonValue& root, HfConfig& config, HfConfigOptions options) {
  config.family = ModelFamily::kQwen3;
  read_llama_sizes(root, config);
  config.head_dim = head_dim_or(root, 128);  // the family's default
  if (config.head_dim % 2 != 0) {
    throw root.error(
        fmt::format("head_dim is {}, rotary embedding needs an even number", config.head_dim));
  }
  need_activation(root, "hidden_act", config, {"silu", "swish"});
  if (!options.only_sizes) {
    read_rope(root, config);
    refuse_sliding_window(root, config);
  }
  read_dropout(root, "attention_dropout", 0.0, config, options);
}

void read_gpt2(const JsonValue& root, HfConfig& config, HfConfigOptions options) {
  config.family = ModelFamily::kGpt2;
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
  const auto inner = root.find("n_inner");
  config.intermediate_size = inner ? inner->integer(1, kMostWidth) : 4 * config.hidden_size;
  config.max_position_embeddings = size_at(root, "n_positions", kMostPositions);
  config.norm_eps = positive_number_or(root, "layer_norm_epsilon", 1e-5);
  config.tie_word_embeddings = bool_or(root, "tie_word_embeddings", true);
  config.attention_bias = true;
  need_activation(root, "activation_function", config, {"gelu_new", "gelu_pytorch_tanh"});
  refuse(root, "scale_attn_weights", false);
  refuse(root, "scale_attn_by_inverse_layer_idx", true);
  refuse(root, "reorder_and_upcast_attn", true);
  refuse(root, "add_cross_attention", true);
  for (const std::string_view key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    read_dropout(root, key, 0.1, config, options);  // the family's default
  }
}

void read_experts(const JsonValue& root, HfConfig& config) {
  for (const std::string_view key : {"num_experts", "num_local_experts"}) {
    if (const auto experts = root.find(key)) {
      config.experts = experts->integer(1, kMostWidth);
    }
  }
  if (config.experts == 0) {
    return;
  }
  config.experts_per_token = root.at("num_experts_per_tok").integer(1, config.experts);
  const auto size = root.find("moe_intermediate_size");
  config.expert_size = size ? size->integer(1, kMostWidth) : config.intermediate_size;
  const auto step = root.find("decoder_sparse_step");
  const std::int64_t every = step ? step->integer(1, kMostLayers) : 1;
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

/// Families that are described only: all have Llama's keys.
void read_sizes(const JsonValue& root, HfConfig& config, HfConfigOptions options) {
  config.family = ModelFamily::kDescribed;
  read_llama_sizes(root, config);
  config.head_dim =
      head_dim_or(root, std::max<std::int64_t>(1, config.hidden_size / config.num_attention_heads));
  config.attention_out_bias = bool_or(root, "attention_out_bias", config.attention_bias);
  config.mlp_bias = bool_or(root, "mlp_bias", false);
  config.activation = "silu";
  read_experts(root, config);
  read_dropout(root, "attention_dropout", 0.0, config, options);
}

using FamilyReader = void (*)(const JsonValue&, HfConfig&, HfConfigOptions);

constexpr std::array<std::string_view, 5> kDescribedTypes = {"gpt_oss", "llama", "phi3",
                                                             "qwen3_moe", "seed_oss"};

FamilyReader reader_of(const JsonValue& model_type, HfConfigOptions options) {
  const std::string_view name = model_type.string();
  if (options.only_sizes && std::ranges::find(kDescribedTypes, name) != kDescribedTypes.end()) {
    return read_sizes;
  }
  if (name == "qwen3") {
    return read_qwen3;
  }
  if (name == "gpt2") {
    return read_gpt2;
  }
  std::vector<std::string> known = known_model_types();
  if (options.only_sizes) {
    known.insert(known.end(), kDescribedTypes.begin(), kDescribedTypes.end());
  }
  throw model_type.error(
      fmt::format("unknown architecture \"{}\", known are: {}", name, fmt::join(known, ", ")));
}

void read_dtype(const JsonValue& root, HfConfig& config) {
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    if (const auto value = root.find(key)) {
      config.dtype = std::string(value->string());
      if (config.dtype != "float32" && config.dtype != "bfloat16" && config.dtype != "float16") {
        throw value->wrong("\"float32\", \"bfloat16\" or \"float16\"");
      }
    }
  }
}

/// End of the JSON value that begins at `from`, in valid JSON.
std::size_t end_of_value(std::string_view json, std::size_t from) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = from; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 0 && (c == ',' || c == '}' || c == ']' || c == ':')) {
      return i;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return json.size();
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t from = text.find_first_not_of(kBlanks);
  return from == std::string_view::npos
             ? std::string_view{}
             : text.substr(from, text.find_last_not_of(kBlanks) - from + 1);
}

}  // namespace

const std::vector<std::string>& known_model_types() {
  static const std::vector<std::string> kTypes = {"gpt2", "qwen3"};
  return kTypes;
}

HfConfig parse_hf_config(std::string_view json, std::string_view file, HfConfigOptions options) {
  const JsonDocument document = JsonDocument::parse(
      json, {.where = "model config", .file = std::string(file), .advice = "correct config.json"});
  const JsonValue root = document.root();
  const FamilyReader read_family = reader_of(root.at("model_type"), options);
  if (const auto quantized = root.find("quantization_config"); quantized && !options.only_sizes) {
    throw quantized->error("quantized checkpoints are not supported: take the full-size weights");
  }
  HfConfig config;
  config.model_type = std::string(root.at("model_type").string());
  config.json = std::string(json);
  if (const auto names = root.find("architectures")) {
    for (const JsonValue& name : names->items()) {
      config.architectures.emplace_back(name.string());
    }
  }
  read_family(root, config, options);
  config.initializer_range = number_or(root, "initializer_range", 0.02);
  if (config.initializer_range < 0) {
    throw root.at("initializer_range").wrong("a number of at least 0");
  }
  read_tokens(root, config);
  read_dtype(root, config);
  return config;
}

HfConfig read_hf_config(const std::filesystem::path& path, HfConfigOptions options) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? path / "config.json" : path;
  return parse_hf_config(read_file(file, "model config", kMostConfigBytes), file.string(), options);
}

std::string with_json_member(std::string_view json, std::string_view key, std::string_view value) {
  const std::string quoted = json_quote(key);
  const std::size_t open = json.find('{') + 1;
  for (std::size_t at = open; at < json.size() && json[at] != '}';) {
    const std::size_t colon = end_of_value(json, at);
    const std::size_t end = end_of_value(json, colon + 1);
    if (trimmed(json.substr(at, colon - at)) == quoted) {
      const std::string_view old = trimmed(json.substr(colon + 1, end - colon - 1));
      const auto from = static_cast<std::size_t>(old.data() - json.data());
      return fmt::format("{}{}{}", json.substr(0, from), value, json.substr(from + old.size()));
    }
    at = end < json.size() && json[end] == ',' ? end + 1 : json.size();
  }
  const bool empty = trimmed(json.substr(open)).starts_with('}');
  return fmt::format("{}\n  {}: {}{}{}", json.substr(0, open), quoted, value, empty ? "\n" : ",",
                     json.substr(open));
}

std::string hf_config_json(const HfConfig& config, std::string_view dtype) {
  const JsonDocument document = JsonDocument::parse(
      config.json, {.where = "model config", .file = "config.json", .advice = "correct it"});
  const std::string value = json_quote(dtype);
  const simdjson::dom::object root = document.root().object();
  const bool has_new = root.at_key("dtype").error() == simdjson::SUCCESS;
  const bool has_old = root.at_key("torch_dtype").error() == simdjson::SUCCESS;
  std::string json = config.json;
  if (has_new) {
    json = with_json_member(json, "dtype", value);
  }
  if (has_old || !has_new) {
    json = with_json_member(json, "torch_dtype", value);
  }
  return json;
}

void write_hf_config(const HfConfig& config, const std::filesystem::path& folder,
                     std::string_view dtype) {
  write_file(folder / "config.json", "model config", hf_config_json(config, dtype));
}

}  // namespace tandem
