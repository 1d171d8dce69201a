#include "models/layers/rotary_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// Slow frequencies turn less than `low` times over the original positions: they are divided. Fast
/// ones stay.
void scale_llama3(const RotaryScaling& s, std::span<float> frequencies) {
  const auto original = static_cast<double>(s.original_positions);
  const auto longest = static_cast<float>(original / s.low_frequency_factor);
  const auto shortest = static_cast<float>(original / s.high_frequency_factor);
  const auto factor = static_cast<float>(s.factor);
  const auto low = static_cast<float>(s.low_frequency_factor);
  const auto range = static_cast<float>(s.high_frequency_factor - s.low_frequency_factor);
  for (float& frequency : frequencies) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > longest) {
      frequency = frequency / factor;
    } else if (!(wavelength < shortest)) {
      const float smooth = (static_cast<float>(original) / wavelength - low) / range;
      frequency = (1.0F - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

/// The index of the frequency that turns `turns` times over the original positions.
double index_of_turns(const RotaryScaling& s, double turns) {
  const auto original = static_cast<double>(s.original_positions);
  return static_cast<double>(s.dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(s.theta));
}

/// Between the two indices the frequencies pass from kept to divided. `powers`: theta^(2i/dim).
void scale_yarn(const RotaryScaling& s, std::span<const float> powers,
                std::span<float> frequencies) {
  double low = index_of_turns(s, s.beta_fast);
  double high = index_of_turns(s, s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(s.dim - 1));
  high += low == high ? 0.001 : 0.0;
  const auto factor = static_cast<float>(s.factor);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F,
        1.0F);
    const float kept = 1.0F - ramp;
    frequencies[i] = 1.0F / (factor * powers[i]) * (1.0F - kept) + 1.0F / powers[i] * kept;
  }
}

}  // namespace

void RotaryScaling::require_length(std::int64_t length) const {
  if (kind == RotaryKind::kDynamic && length > original_positions) {
    throw user_error("model",
                     "a text of {} tokens is longer than max_position_embeddings {}, from where on "
                     "rope_scaling \"dynamic\" computes otherwise for each length; shorten it "
                     "(--max_length {}), or write another type into config.json",
                     length, original_positions, original_positions);
  }
}

std::vector<float> rotary_frequencies(const RotaryScaling& s, bool long_text) {
  std::vector<float> powers;
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < s.dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(s.dim);
    powers.push_back(static_cast<float>(std::pow(s.theta, static_cast<double>(exponent))));
    frequencies.push_back(1.0F / powers.back());
  }
  switch (s.kind) {
    case RotaryKind::kNone:
    case RotaryKind::kDefault:
    case RotaryKind::kDynamic:
      break;
    case RotaryKind::kLinear:
      for (float& frequency : frequencies) {
        frequency /= static_cast<float>(s.factor);
      }
      break;
    case RotaryKind::kLlama3:
      scale_llama3(s, frequencies);
      break;
    case RotaryKind::kYarn:
      scale_yarn(s, powers, frequencies);
      break;
    case RotaryKind::kLongRope:
      for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double factor = (long_text ? s.long_factors : s.short_factors)[i];
        frequencies[i] = 1.0F / (static_cast<float>(factor) * powers[i]);
      }
      break;
  }
  return frequencies;
}

double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto of = [factor](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
  };
  return mscale != 0 && mscale_all_dim != 0 ? of(mscale) / of(mscale_all_dim) : of(1.0);
}

double longrope_attention_factor(double factor, std::int64_t original_positions) {
  return factor <= 1
             ? 1.0
             : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original_positions)));
}

}  // namespace tandem
