#include "engine/model/initializers.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// splitmix64's numbers, by their place: element i of a parameter has its own, on every rank.
class Draws {
 public:
  Draws(std::uint64_t seed, std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : name) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
    key_ = mix(mix(seed + kStep) ^ hash);
  }
  /// In [0, 1).
  [[nodiscard]] double uniform(std::int64_t place) const noexcept {
    const std::uint64_t bits = mix(key_ + (static_cast<std::uint64_t>(place) + 1) * kStep);
    return static_cast<double>(bits >> 11) * 0x1p-53;
  }
  [[nodiscard]] double normal(std::int64_t place) const noexcept {  // Box and Muller
    const double radius = std::sqrt(-2 * std::log(1 - uniform(2 * place)));
    return radius * std::cos(2 * std::numbers::pi * uniform(2 * place + 1));
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;
  static constexpr std::uint64_t mix(std::uint64_t z) noexcept {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::uint64_t key_ = 0;
};

struct Fans {
  double in = 1;
  double out = 1;
};

Fans fans_of(const ParameterSpec& parameter) {
  if (parameter.shape.size() < 2) {
    throw user_error("model",
                     "parameter {} has {} dimensions, and this initializer counts inputs and "
                     "outputs: 2 at least; use init::zeros, uniform or normal",
                     parameter.name, parameter.shape.size());
  }
  double field = 1;
  for (std::size_t i = 2; i < parameter.shape.size(); ++i) {
    field *= static_cast<double>(parameter.shape[i]);
  }
  return {.in = static_cast<double>(parameter.shape[1]) * field,
          .out = static_cast<double>(parameter.shape[0]) * field};
}

using DeviationOf = double (*)(const Fans& fans);
double kaiming(const Fans& fans) { return 1 / std::sqrt(fans.in); }
double xavier(const Fans& fans) { return std::sqrt(2 / (fans.in + fans.out)); }

/// Uniform numbers of this deviation lie within sqrt(3) of it.
Initializer scaled_uniform(double gain, DeviationOf deviation_of) {
  return [=](const ParameterSpec& parameter, std::uint64_t seed, std::int64_t begin,
             std::int64_t end, float* out) {
    const double bound = gain * deviation_of(fans_of(parameter)) * std::numbers::sqrt3;
    init::uniform(-bound, bound)(parameter, seed, begin, end, out);
  };
}

Initializer scaled_normal(double gain, DeviationOf deviation_of) {
  return [=](const ParameterSpec& parameter, std::uint64_t seed, std::int64_t begin,
             std::int64_t end, float* out) {
    init::normal(gain * deviation_of(fans_of(parameter)))(parameter, seed, begin, end, out);
  };
}

}  // namespace

namespace init {

Initializer constant(float value) {
  return [value](const ParameterSpec& /*parameter*/, std::uint64_t /*seed*/, std::int64_t begin,
                 std::int64_t end, float* out) { std::fill_n(out, end - begin, value); };
}
Initializer zeros() { return constant(0); }
Initializer ones() { return constant(1); }

Initializer uniform(double low, double high) {
  return [low, high](const ParameterSpec& parameter, std::uint64_t seed, std::int64_t begin,
                     std::int64_t end, float* out) {
    const Draws draws(seed, parameter.name);
    for (std::int64_t i = begin; i < end; ++i) {
      *out++ = static_cast<float>(low + (high - low) * draws.uniform(i));
    }
  };
}

Initializer normal(double deviation, double mean) {
  return [deviation, mean](const ParameterSpec& parameter, std::uint64_t seed, std::int64_t begin,
                           std::int64_t end, float* out) {
    const Draws draws(seed, parameter.name);
    for (std::int64_t i = begin; i < end; ++i) {
      *out++ = static_cast<float>(mean + deviation * draws.normal(i));
    }
  };
}

Initializer kaiming_uniform(double gain) { return scaled_uniform(gain, &kaiming); }
Initializer kaiming_normal(double gain) { return scaled_normal(gain, &kaiming); }
Initializer xavier_uniform(double gain) { return scaled_uniform(gain, &xavier); }
Initializer xavier_normal(double gain) { return scaled_normal(gain, &xavier); }

}  // namespace init

ParameterSource initial_values(std::uint64_t seed,
                               std::function<Initializer(const ParameterSpec& parameter)> of) {
  return [seed, of = std::move(of)](const ParameterSpec& parameter, std::int64_t begin,
                                    std::int64_t end, float* out) {
    of(parameter)(parameter, seed, begin, end, out);
  };
}

}  // namespace tandem
