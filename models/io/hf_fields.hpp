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
inline constexpr std::int64_t kMostHeadSize = 512;                   // limit of attention's kernel
inline constexpr std::int64_t kMostExpertWidth = std::int64_t{1} << 24;  // of a token's experts
// The bytes that a run holds of a model, some fifty for each parameter, stay far below 2^63.
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 44;

/// These return a member by its name. For a member that is missing or null they return `otherwise`;
/// size_at() throws. All throw user_error if the value has another type or lies outside its range.
std::int64_t size_at(const JsonValue& from, std::string_view key, std::int64_t at_most);
std::int64_t size_or(const JsonValue& from, std::string_view key, std::int64_t at_most,
                     std::int64_t otherwise);
double positive_or(const JsonValue& from, std::string_view key, double otherwise);
double rate_or(const JsonValue& from, std::string_view key, double otherwise);  // in [0, 1)

/// Returns the value; throws user_error unless it is a number above 0.
double positive(const JsonValue& value);

/// Returns the ids under a key, which has one number, a list, or nothing. Ids outside [0, last] are
/// left out, since no text has them. Throws user_error for a value that is no integer.
std::vector<std::int64_t> token_ids(const JsonValue& from, std::string_view key, std::int64_t last);

/// Returns whether the member is null; some families distinguish null from a missing member.
bool is_null(const JsonValue& from, std::string_view key);

/// Throws user_error if the flag has `unsupported_value`, which asks for a computation that the
/// models here do not have.
void refuse(const JsonValue& from, std::string_view key, bool unsupported_value);
/// Throws user_error unless the text is one of `known`, which the models here compute.
void require(const JsonValue& from, std::string_view key,
             std::initializer_list<std::string_view> known);

/// Defaults of read_rope(), which reads the rotary positions in either spelling, and uses
/// config.head_dim and config.max_position_embeddings. `theta`: used if the file has none;
/// `is_phi3`: the file has Phi-3's own names.
struct RopeDefaults {
  double theta = 10000.0;
  bool is_phi3 = false;
};
RotaryScaling read_rope(const JsonValue& root, const HfConfig& config,
                        const RopeDefaults& defaults);
/// The same from the object that has them (absent: the defaults).
RotaryScaling read_rope_object(const JsonValue& root, const std::optional<JsonValue>& rope,
                               const HfConfig& config, const RopeDefaults& defaults);

/// Reads the fields that all families have: special tokens (pad_token_id holds the family's
/// default), type, deviation of fresh weights. Call it after the family's own fields are read.
/// Throws user_error for quantized weights unless the family set packed_experts, and Error for
/// sizes that are too large together.
void read_common_fields(const JsonValue& root, HfConfig& config);

}  // namespace tandem
