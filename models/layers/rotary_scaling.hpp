// models/layers/rotary_scaling.hpp — the frequencies of rotary positions, and the ways in which
// models are taught longer texts by changing them.
//
// fp32 in the order of operations of Transformers (modeling_rope_utils), so that angles at far
// positions agree with it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem {

enum class RotaryKind : std::uint8_t {
  kNone,     // no rotary positions
  kDefault,  // theta^(-2i/dim) (Su et al., 2021)
  kDynamic,  // as kDefault up to original_positions; longer texts are refused
  kLinear,   // all divided by `factor`
  kLlama3,   // low ones divided by `factor`, with a smooth transition
  kYarn,     // high ones kept, low ones divided (Peng et al., 2023); cosines and sines scaled
  // each divided by its own factor, another one in long texts; cosines and sines scaled
  kLongRope,
};

struct RotaryName {
  std::string_view name;  // as config.json's rope_type
  RotaryKind kind;
};
constexpr std::array kRotaryNames = {
    RotaryName{"default", RotaryKind::kDefault},   RotaryName{"dynamic", RotaryKind::kDynamic},
    RotaryName{"linear", RotaryKind::kLinear},     RotaryName{"llama3", RotaryKind::kLlama3},
    RotaryName{"longrope", RotaryKind::kLongRope}, RotaryName{"yarn", RotaryKind::kYarn}};

struct RotaryScaling {
  RotaryKind kind = RotaryKind::kNone;
  double theta = 10000.0;
  std::int64_t dim = 0;  // leading elements of a head that are rotated; even
  double factor = 1.0;
  std::int64_t original_positions = 0;  // before scaling; not with kDefault and kLinear
  double low_frequency_factor = 1.0, high_frequency_factor = 4.0;  // kLlama3
  double beta_fast = 32.0, beta_slow = 1.0;                        // kYarn
  bool truncate = true;
  std::vector<double> short_factors, long_factors;  // kLongRope, dim / 2 each
  double attention_factor = 1.0;                    // of cosines and sines

  bool operator==(const RotaryScaling&) const = default;
  /// Throws user_error for a text of more positions than there are frequencies for.
  void require_length(std::int64_t length) const;
  /// Returns whether a text of `length` positions has the frequencies of long texts.
  [[nodiscard]] bool is_long(std::int64_t length) const noexcept {
    return kind == RotaryKind::kLongRope && length > original_positions;
  }
};

/// Returns dim / 2 frequencies in radians per position.
std::vector<float> rotary_frequencies(const RotaryScaling& scaling, bool long_text = false);

/// Returns YaRN's factor of cosines and sines, for a config.json that gives none. The mscales are
/// DeepSeek's; 0: absent.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);
/// Returns LongRoPE's factor of cosines and sines.
double longrope_attention_factor(double factor, std::int64_t original_positions);

}  // namespace tandem
