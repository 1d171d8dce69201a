// models/trained_parts.hpp — chooses the trained parameters of a model: low-rank adapters beside a
// frozen base, or all parameters except those that a pattern freezes.
//
// Names are Hugging Face's: a module is "model.layers.0.self_attn.q_proj", and its parameter has
// ".weight" behind it. All functions are pure, and throw user_error for a choice that the model
// does not allow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct DecoderSpec;

/// Adapters as PEFT's LoraConfig describes them.
struct LoraOptions {
  std::int64_t rank = 0;  // r; 0: no adapters
  double alpha = 8;
  double dropout = 0;            // of what goes into A
  bool rank_stabilised = false;  // use_rslora
  /// Modules by name or by the end of it ("q_proj"), or "all-linear" alone: the projections of
  /// attention and of dense MLPs.
  std::vector<std::string> targets;
  /// Modules that are trained and saved whole: all modules whose name ends with one of these.
  std::vector<std::string> modules_to_save;

  [[nodiscard]] bool any() const noexcept { return rank > 0; }
  /// The factor of what adapters add: alpha / rank, or alpha / sqrt(rank).
  [[nodiscard]] double scale() const;
  /// Throws user_error for numbers that make no sense.
  void check() const;
};

struct TrainedParts {
  LoraOptions lora;
  std::string freeze;  // a regular expression (PCRE2), looked for in parameters' names; empty: none

  /// Adds the adapters to the description, and says which parameters are frozen. With adapters
  /// these are all but the adapters and modules_to_save; else the ones that `freeze` matches, which
  /// must be some parameters and not all.
  void apply(DecoderSpec& spec, std::string_view model_type) const;
};

inline constexpr std::string_view kAllLinear = "all-linear";

/// Returns the modules of a model that can have adapters, in its order.
[[nodiscard]] std::vector<std::string> adaptable_modules(const DecoderSpec& spec);

/// Returns the adaptable modules that the targets mean.
[[nodiscard]] std::vector<std::string> adapted_modules(const DecoderSpec& spec,
                                                       const LoraOptions& lora);

/// Returns the names of the adapted modules for adapter_config.json, as PEFT writes them, sorted:
/// the targets as they were given, and full names for "all-linear". If they are 20 or more, ends of
/// names that mean the same modules replace them.
[[nodiscard]] std::vector<std::string> saved_targets(const DecoderSpec& spec,
                                                     const LoraOptions& lora);

}  // namespace tandem
