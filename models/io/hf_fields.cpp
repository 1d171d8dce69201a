#include "models/io/hf_fields.hpp"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "engine/types/capped.hpp"

namespace tandem {
namespace {

/// The padding's row; a missing id is the family's default, null is none, and a negative one counts
/// from the end, as torch's embeddings have it.
std::optional<std::int64_t> padding_row(const JsonValue& root, HfConfig& config) {
  const std::optional<std::int64_t> otherwise = config.pad_token_id;
  const auto value = root.find("pad_token_id");
  if (!value) {
    const bool none = is_null(root, "pad_token_id") || otherwise >= config.vocab_size;
    return none ? std::nullopt : otherwise;
  }
  const std::int64_t row = value->integer(-config.vocab_size, config.vocab_size - 1);
  if (row < 0) {
    config.notes.push_back(fmt::format(
        "pad_token_id is {}: row {} of the embedding is taken for padding, as Transformers does",
        row, config.vocab_size + row));
    return config.vocab_size + row;
  }
  return row;
}

void read_tokens(const JsonValue& root, HfConfig& config) {
  config.pad_token_id = padding_row(root, config);
  const std::int64_t last = config.vocab_size - 1;
  const std::vector<std::int64_t> begins = token_ids(root, "bos_token_id", last);
  config.bos_token_id = begins.size() == 1 ? std::optional(begins.front()) : std::nullopt;
  config.eos_token_ids = token_ids(root, "eos_token_id", last);
}

void read_dtype(const JsonValue& root, HfConfig& config) {
  constexpr std::string_view kAnyType = "auto";
  constexpr std::string_view kTorch = "torch.";  // as str() writes a type
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    const auto value = root.find(key);
    if (!value || value->string() == kAnyType) {
      continue;
    }
    std::string_view name = value->string();
    if (name.starts_with(kTorch)) {
      name.remove_prefix(kTorch.size());
    }
    if (name == "half" || name == "float") {  // torch has two names for these
      name = name == "half" ? "float16" : "float32";
    } else if (name == "float64" || name == "double") {
      config.notes.push_back(fmt::format("{}: {} is read as float32", key, name));
      name = "float32";
    }
    if (name != "float32" && name != "bfloat16" && name != "float16") {
      throw value->wrong("one of float32, bfloat16, float16, float64");
    }
    config.dtype = std::string(name);
  }
}

/// Elements of the weights, about: biases and norms are left out.
std::int64_t parameters_of(const HfConfig& c) {
  const std::int64_t heads = c.num_attention_heads * c.head_dim;
  const std::int64_t kv_heads = c.num_key_value_heads * c.head_dim;
  const std::int64_t mlp = 3 * c.hidden_size;
  const std::int64_t attention = product_capped(c.hidden_size, 2 * (heads + kv_heads));
  const bool learnt_positions = c.rope.kind == RotaryKind::kNone;
  const std::int64_t rows = c.vocab_size + (learnt_positions ? c.max_position_embeddings : 0);
  std::int64_t sum = product_capped(rows, c.hidden_size);
  for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::int64_t width =
        c.sparse(layer) ? product_capped(c.experts, c.expert_size) : c.intermediate_size;
    sum = sum_capped(sum, sum_capped(attention, product_capped(mlp, width)));
  }
  return sum;
}

void check_sizes(const JsonValue& root, const HfConfig& c) {
  const auto refuse_above = [&](std::string_view what, std::int64_t value, std::int64_t limit,
                                ExitCode code = ExitCode::kUserInput) {
    if (value > limit) {
      const Error error = root.error(fmt::format("{} is {}, the limit is {}", what, value, limit));
      throw Error(code, error.what());
    }
  };
  // Nothing says which of the sizes is wrong, but no host holds such a model.
  refuse_above("the number of parameters", parameters_of(c), kMostParameters, ExitCode::kRefused);
  refuse_above("the size of a head", c.head_dim, kMostHeadSize);
  refuse_above("the number of experts in all layers",
               product_capped(c.experts, c.num_hidden_layers), kMostExperts);
  refuse_above("the width of a token's experts", c.experts_per_token * c.expert_size,
               kMostExpertWidth);
}

}  // namespace

std::int64_t size_at(const JsonValue& from, std::string_view key, std::int64_t at_most) {
  return from.at(key).integer(1, at_most);
}

std::int64_t size_or(const JsonValue& from, std::string_view key, std::int64_t at_most,
                     std::int64_t otherwise) {
  const auto value = from.find(key);
  return value ? value->integer(1, at_most) : otherwise;
}

double positive(const JsonValue& value) {
  if (!(value.number() > 0)) {
    throw value.wrong("a number above 0");
  }
  return value.number();
}

double positive_or(const JsonValue& from, std::string_view key, double otherwise) {
  const auto value = from.find(key);
  return value ? positive(*value) : otherwise;
}

double rate_or(const JsonValue& from, std::string_view key, double otherwise) {
  const auto value = from.find(key);
  const double rate = value ? value->number() : otherwise;
  if (!(rate >= 0 && rate < 1)) {
    throw value->wrong("a rate from 0 to below 1");
  }
  return rate;
}

std::vector<std::int64_t> token_ids(const JsonValue& from, std::string_view key,
                                    std::int64_t last) {
  std::vector<std::int64_t> ids;
  if (const auto value = from.find(key)) {
    for (const JsonValue& id : value->is_array() ? value->items() : std::vector{*value}) {
      if (const std::int64_t number = id.integer(); number >= 0 && number <= last) {
        ids.push_back(number);
      }
    }
  }
  return ids;
}

bool is_null(const JsonValue& from, std::string_view key) {
  return !from.find(key) && from.object().at_key(key).error() == simdjson::SUCCESS;
}

void refuse(const JsonValue& from, std::string_view key, bool unsupported_value) {
  const auto value = from.find(key);
  if (value && value->boolean() == unsupported_value) {
    throw value->wrong(fmt::format("{} (the other way of computing is not supported)",
                                   unsupported_value ? "false" : "true"));
  }
}

void require(const JsonValue& from, std::string_view key,
             std::initializer_list<std::string_view> known) {
  const JsonValue value = from.at(key);
  if (std::ranges::find(known, value.string()) == known.end()) {
    throw value.wrong(fmt::format("one of {}", fmt::join(known, ", ")));
  }
}

void read_common_fields(const JsonValue& root, HfConfig& config) {
  check_sizes(root, config);
  if (const auto quantized = root.find("quantization_config");
      quantized && !config.packed_experts) {
    throw quantized->error("quantized checkpoints are not supported: take the full-size weights");
  }
  const auto deviation = root.find("initializer_range");
  config.initializer_range = deviation ? deviation->number() : 0.02;
  if (config.initializer_range < 0) {
    throw deviation->wrong("a number of at least 0");
  }
  if (std::ranges::count(config.windows, 0) == std::ssize(config.windows)) {
    config.windows.clear();
  }
  read_tokens(root, config);
  read_dtype(root, config);
}

}  // namespace tandem
