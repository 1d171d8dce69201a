// models/families/family.hpp — the description of a model family, and the list of families.
//
// A family consists of one file in this folder, which defines its Family, and of one line in
// TANDEM_FAMILIES.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "actors/storage/json.hpp"
#include "models/families/config_members.hpp"
#include "models/io/hf_config.hpp"
#include "models/transformer/decoder.hpp"

namespace tandem {

/// A class of Transformers whose modules can be gathered as one unit each.
struct LeafName {
  std::string_view module;
  LeafModule leaf;
};

/// Another spelling of tensors' names: `other` stands in the place of `part`.
struct OtherSpelling {
  std::string_view part;
  std::string_view other;
};

/// Rotary frequencies: they are computed here and not read.
inline constexpr std::array<std::string_view, 1> kFrequencies = {".rotary_emb.inv_freq"};

struct Family {
  std::string_view model_type;  // as config.json has it
  /// Reads the sizes and features of a config.json; read_common_fields() reads the rest. Throws
  /// user_error for a feature that the models here do not compute.
  void (*read_config)(const JsonValue& root, HfConfig& config);
  DecoderSpec (*describe)(const HfConfig& config);
  std::span<const LeafName> leaves = {};  // of mixtures of experts
  double fresh_norm = 1;                  // fresh weights of its RMS norms
  /// The model_type of larger models, which hold a model of the family beside parts for images or
  /// sound. Its config is their text_config, and its tensors' names begin with `part_prefix`; names
  /// of the other parts' tensors begin with one of `other_parts`. Only the text model is read, and
  /// it is saved as a model of the family.
  std::string_view whole_type = {};
  std::string_view part_prefix = {};
  std::span<const std::string_view> other_parts = {};
  /// Members that such a text_config may leave out, as JSON without braces.
  std::string_view part_defaults = {};
  /// Checkpoints may leave out this beginning of a tensor's name, as checkpoints of the model
  /// without its head do.
  std::string_view optional_prefix = "model.";
  std::span<const OtherSpelling> spellings = {};
  /// The members of config.json beside those that every family has.
  std::span<const ConfigMember> members = {};
  /// Endings of the names of tensors that checkpoints have although they are no parameters.
  std::span<const std::string_view> extras = kFrequencies;
};

/// One line for each family, by model_type.
#define TANDEM_FAMILIES(FAMILY) \
  FAMILY(kGemma3)               \
  FAMILY(kGpt2)                 \
  FAMILY(kGptOss)               \
  FAMILY(kLlama)                \
  FAMILY(kMistral)              \
  FAMILY(kMixtral)              \
  FAMILY(kPhi3)                 \
  FAMILY(kQwen2)                \
  FAMILY(kQwen3)                \
  FAMILY(kQwen3Moe)             \
  FAMILY(kSeedOss)

#define TANDEM_DECLARE_FAMILY(name) extern const Family name;
TANDEM_FAMILIES(TANDEM_DECLARE_FAMILY)
#undef TANDEM_DECLARE_FAMILY

}  // namespace tandem
