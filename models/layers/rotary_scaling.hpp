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
  kNone,     // positions come from elsewhere
  kDefault,  // theta^(-2i/dim) (Su et al., 2021)
  kDynamic,  // as kDefault up to original_positions; longer texts, whose own length would say, none
  kLinear,   // all divided by `factor`
  kLlama3,   // low ones divided by `factor`, with a smooth passage
  kYarn,     // high ones kept, low ones divided (Peng et al., 2023); cosines and sines scaled
  // each divided by a factor of its own, others for long texts; cosines and sines scaled
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
  std::int64_t original_positions = 0;  // that the model knew before; not with kDefault and kLinear
  double low_frequency_factor = 1.0, high_frequency_factor = 4.0;  // kLlama3
  double beta_fast = 32.0, beta_slow = 1.0;                        // kYarn
  bool truncate = true;
  std::vector<double> short_factors, long_factors;  // kLongRope, dim / 2 each
  double attention_factor = 1.0;                    // of cosines and sines

  bool operator==(const RotaryScaling&) const = default;
  /// Throws user_error for a text of more positions than there are frequencies for.
  void require_length(std::int64_t length) const;
  /// Whether a text of `length` positions has the frequencies of long ones.
  [[nodiscard]] bool is_long(std::int64_t length) const noexcept {
    return kind == RotaryKind::kLongRope && length > original_positions;
  }
};

/// Radians per position, dim / 2 of them.
std::vector<float> rotary_frequencies(const RotaryScaling& scaling, bool long_text = false);

/// YaRN's factor of cosines and sines where config.json gives none. The mscales are DeepSeek's; 0:
/// absent.
double yarn_attention_factor(double factor, double mscale, double mscale_all_dim);
/// LongRoPE's factor of them.
double longrope_attention_factor(double factor, std::int64_t original_positions);

}  // namespace tandem
