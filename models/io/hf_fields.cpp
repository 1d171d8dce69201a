#include "models/io/hf_fields.hpp"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

namespace tandem {
namespace {

/// A token's id; a missing one is the family's default, null is none.
std::optional<std::int64_t> token_id(const JsonValue& root, std::string_view key,
                                     const HfConfig& config,
                                     std::optional<std::int64_t> otherwise = std::nullopt) {
  if (const auto value = root.find(key)) {
    return value->integer(0, config.vocab_size - 1);
  }
  return is_null(root, key) || otherwise >= config.vocab_size ? std::nullopt : otherwise;
}

void read_tokens(const JsonValue& root, HfConfig& config) {
  config.pad_token_id = token_id(root, "pad_token_id", config, config.pad_token_id);
  config.bos_token_id = token_id(root, "bos_token_id", config);
  config.eos_token_ids = token_ids(root, "eos_token_id", config.vocab_size - 1);
}

void read_dtype(const JsonValue& root, HfConfig& config) {
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    if (const auto value = root.find(key)) {
      require(root, key, {"float32", "bfloat16", "float16"});
      config.dtype = std::string(value->string());
    }
  }
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
      ids.push_back(id.integer(0, last));
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
