// models/trained_parts.hpp — chooses the trained parameters of a model: low-rank adapters beside a
// frozen base, or all parameters except those that a pattern freezes.
//
// Names are those of Hugging Face: a module is "model.layers.0.self_attn.q_proj", its parameter
// that and ".weight". Pure; throws user_error for what cannot be.
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
  /// Modules by name or by its end ("q_proj"), or "all-linear" alone: attention's projections and
  /// those of dense MLPs.
  std::vector<std::string> targets;
  /// Modules that are trained and saved whole: those whose name ends so.
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

  /// Gives the description its adapters and says what is frozen: by a pattern that must freeze some
  /// parameters and not all; with adapters, everything but them and modules_to_save.
  void apply(DecoderSpec& spec, std::string_view model_type) const;
};

inline constexpr std::string_view kAllLinear = "all-linear";

/// The modules of a model that can have adapters, in its order.
[[nodiscard]] std::vector<std::string> adaptable_modules(const DecoderSpec& spec);

/// Those of them that the targets mean.
[[nodiscard]] std::vector<std::string> adapted_modules(const DecoderSpec& spec,
                                                       const LoraOptions& lora);

/// The names of the adapted modules in adapter_config.json, as PEFT has them: the targets as they
/// were given; all linear ones, and modules by their full names, by these where they are fewer than
/// 20, else by ends of names that mean the same modules. Sorted.
[[nodiscard]] std::vector<std::string> saved_targets(const DecoderSpec& spec,
                                                     const LoraOptions& lora);

}  // namespace tandem
