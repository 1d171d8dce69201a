// Reads the rotary positions in config.json: rope_theta and rope_scaling of published files,
// rope_parameters of Transformers 5.
#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "models/io/hf_fields.hpp"

namespace tandem {
namespace {

/// A number that counts as absent where it is 0, as in Transformers.
double number_or(const JsonValue& from, std::string_view key, double otherwise) {
  const auto value = from.find(key);
  return value && value->number() != 0 ? positive(*value) : otherwise;
}

RotaryKind kind_of(const JsonValue& type, const RopeDefaults& defaults) {
  const std::string_view name = type.string();
  // Phi-3's first files call it so.
  if (defaults.is_phi3 && (name == "su" || name == "yarn")) {
    return RotaryKind::kLongRope;
  }
  std::vector<std::string_view> names;
  for (const RotaryName& known : kRotaryNames) {
    const bool usable = !defaults.is_phi3 || known.kind == RotaryKind::kDefault ||
                        known.kind == RotaryKind::kLongRope;
    if (usable && known.name == name) {
      return known.kind;
    }
    if (usable) {
      names.push_back(known.name);
    }
  }
  throw type.wrong(fmt::format("one of {}", fmt::join(names, ", ")));
}

RotaryKind kind_in(const JsonValue& rope, const RopeDefaults& defaults) {
  for (const auto& [key, value] : rope.members()) {
    if (value.is_object()) {
      throw value.error("rotary embeddings of their own for some layers are not supported");
    }
  }
  for (const std::string_view key : {"rope_type", "type"}) {
    if (const auto type = rope.find(key)) {
      return kind_of(*type, defaults);
    }
  }
  return RotaryKind::kDefault;
}

std::vector<double> factors_at(const JsonValue& rope, std::string_view key, std::int64_t count) {
  const JsonValue list = rope.at(key);
  std::vector<double> factors;
  for (const JsonValue& factor : list.items()) {
    factors.push_back(positive(factor));
  }
  if (static_cast<std::int64_t>(factors.size()) != count) {
    throw list.error(fmt::format("has {} numbers, {} are needed (one for each pair of a head)",
                                 factors.size(), count));
  }
  return factors;
}

void read_scaling(const JsonValue& root, const JsonValue& rope, const HfConfig& config,
                  RotaryScaling& out) {
  if (out.kind == RotaryKind::kDefault) {
    return;
  }
  if (out.kind == RotaryKind::kDynamic) {
    out.original_positions = config.max_position_embeddings;
    return;
  }
  const auto factor = rope.find("factor");
  out.factor = out.kind != RotaryKind::kLongRope ? positive(rope.at("factor"))
                                                 : (factor ? positive(*factor) : 0.0);
  if (out.kind == RotaryKind::kLinear) {
    return;
  }
  out.original_positions = config.max_position_embeddings;
  for (const JsonValue& from : {rope, root}) {  // the outer one counts
    if (const auto positions = from.find("original_max_position_embeddings")) {
      out.original_positions = positions->integer(1, kMostPositions);
    }
  }
  if (out.kind == RotaryKind::kLlama3) {
    out.low_frequency_factor = positive(rope.at("low_freq_factor"));
    out.high_frequency_factor = positive(rope.at("high_freq_factor"));
    if (out.high_frequency_factor <= out.low_frequency_factor) {
      throw rope.error(fmt::format("high_freq_factor is {}, not above low_freq_factor {}",
                                   out.high_frequency_factor, out.low_frequency_factor));
    }
  } else if (out.kind == RotaryKind::kYarn) {
    out.beta_fast = number_or(rope, "beta_fast", 32.0);
    out.beta_slow = number_or(rope, "beta_slow", 1.0);
    const auto truncate = rope.find("truncate");
    out.truncate = truncate ? truncate->boolean() : true;
    out.attention_factor = yarn_attention_factor(out.factor, number_or(rope, "mscale", 0.0),
                                                 number_or(rope, "mscale_all_dim", 0.0));
  } else {
    out.short_factors = factors_at(rope, "short_factor", out.dim / 2);
    out.long_factors = factors_at(rope, "long_factor", out.dim / 2);
    if (!factor) {
      out.factor = static_cast<double>(config.max_position_embeddings) /
                   static_cast<double>(out.original_positions);
    }
    out.attention_factor = longrope_attention_factor(out.factor, out.original_positions);
  }
  if (out.kind != RotaryKind::kLlama3) {
    out.attention_factor = positive_or(rope, "attention_factor", out.attention_factor);
  }
}

/// Elements of a head that are rotated.
std::int64_t rotated(const JsonValue& root, const std::optional<JsonValue>& rope,
                     const HfConfig& config, const RopeDefaults& defaults) {
  auto part = root.find("partial_rotary_factor");
  if (rope && rope->find("partial_rotary_factor")) {
    part = rope->find("partial_rotary_factor");
  }
  const double share = part ? positive(*part) : 1.0;
  if (share > 1 || (share < 1 && !defaults.is_phi3)) {
    throw part->wrong(defaults.is_phi3 ? "a share of at most 1"
                                       : "1 (this family rotates whole heads)");
  }
  const auto dim = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * share);
  if (dim % 2 != 0 || dim == 0) {
    throw root.error(fmt::format("head_dim is {}{}, rotary embedding needs an even number",
                                 config.head_dim,
                                 share < 1 ? fmt::format(", rotated are {}", dim) : ""));
  }
  return dim;
}

}  // namespace

RotaryScaling read_rope(const JsonValue& root, const HfConfig& config,
                        const RopeDefaults& defaults) {
  std::optional<JsonValue> rope = root.find("rope_scaling");
  if (!rope) {
    rope = root.find("rope_parameters");
  }
  RopeDefaults otherwise = defaults;
  otherwise.theta = positive_or(root, "rope_theta", defaults.theta);
  return read_rope_object(root, rope, config, otherwise);
}

RotaryScaling read_rope_object(const JsonValue& root, const std::optional<JsonValue>& rope,
                               const HfConfig& config, const RopeDefaults& defaults) {
  RotaryScaling out;
  out.dim = rotated(root, rope, config, defaults);
  out.theta = defaults.theta;
  out.kind = RotaryKind::kDefault;
  if (rope) {
    out.kind = kind_in(*rope, defaults);
    out.theta = positive_or(*rope, "rope_theta", out.theta);
    read_scaling(root, *rope, config, out);
  }
  return out;
}

}  // namespace tandem
