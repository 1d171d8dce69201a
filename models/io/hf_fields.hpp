// models/io/hf_fields.hpp — single members of a config.json, checked as they are read. Families
// put their readers together from these (models/families/).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "actors/storage/json.hpp"
#include "models/io/hf_config.hpp"

namespace tandem {

// No published model comes near these; they keep an absurd size from asking for terabytes.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostWidth = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostLayers = 10'000;
inline constexpr std::int64_t kMostPositions = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostExperts = std::int64_t{1} << 18;  // of all layers together
inline constexpr std::int64_t kMostHeadSize = 512;  // what attention's kernel takes
inline constexpr std::int64_t kMostExpertWidth = std::int64_t{1} << 24;  // a token's, together
// The bytes that a run holds of a model, some fifty for each parameter, stay far below 2^63.
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 44;

/// Members by name. A member that is missing or null has the value `otherwise`; size_at() throws
/// then. All throw user_error where the value has another type or lies outside its range.
std::int64_t size_at(const JsonValue& from, std::string_view key, std::int64_t at_most);
std::int64_t size_or(const JsonValue& from, std::string_view key, std::int64_t at_most,
                     std::int64_t otherwise);
double positive_or(const JsonValue& from, std::string_view key, double otherwise);
double rate_or(const JsonValue& from, std::string_view key, double otherwise);  // in [0, 1)

/// The value, which must be a number above 0.
double positive(const JsonValue& value);

/// The ids from 0 to `last` under a key: one number, a list, or none; others in the list are left
/// out, as no text has them. Throws user_error for what is no integer.
std::vector<std::int64_t> token_ids(const JsonValue& from, std::string_view key, std::int64_t last);

/// Whether the file says null, which some families tell from a missing member.
bool is_null(const JsonValue& from, std::string_view key);

/// Throws user_error where the flag asks for a computation that the models here do not have.
void refuse(const JsonValue& from, std::string_view key, bool unsupported_value);
/// The same where a text is none of those that mean what the models compute.
void require(const JsonValue& from, std::string_view key,
             std::initializer_list<std::string_view> known);

/// The config's rotary positions in either spelling. `theta`: where the file has none; `is_phi3`:
/// Phi-3's own names. Reads config.head_dim and config.max_position_embeddings.
struct RopeDefaults {
  double theta = 10000.0;
  bool is_phi3 = false;
};
RotaryScaling read_rope(const JsonValue& root, const HfConfig& config,
                        const RopeDefaults& defaults);
/// The same of the object that has them (nothing: the defaults).
RotaryScaling read_rope_object(const JsonValue& root, const std::optional<JsonValue>& rope,
                               const HfConfig& config, const RopeDefaults& defaults);

/// Reads the fields of every family, behind the family's own: special tokens (pad_token_id holds
/// the family's default), type, deviation of fresh weights. Throws user_error for quantized weights
/// of which the family did not set packed_experts, and for sizes that fit one by one and not
/// together.
void read_common_fields(const JsonValue& root, HfConfig& config);

}  // namespace tandem
