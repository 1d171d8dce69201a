#include "models/io/random_init.hpp"

#include <bit>
#include <cmath>

namespace tandem {
namespace {

/// FNV-1a, 64 bits: turns a tensor's name into the upper half of its counters.
std::uint64_t hash_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  return hash;
}

/// Natural logarithm from +, -, *, / alone: the C library's may differ in the last bit between
/// machines. x > 0, normal. ln x = e ln 2 + 2 atanh((m-1)/(m+1)) with m in [sqrt(1/2), sqrt(2)).
double portable_log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1) / (m + 1);
  const double t2 = t * t;
  double sum = 0;
  for (int k = 25; k >= 1; k -= 2) {  // |t| < 0.1716: the next term is below 1e-20
    sum = sum * t2 + 1.0 / k;
  }
  return exponent * 0.6931471805599453 + 2 * t * sum;
}

template <std::size_t N>
double polynomial(const std::array<double, N>& coefficients, double x) {
  double value = 0;
  for (std::size_t i = N; i-- > 0;) {
    value = value * x + coefficients[i];
  }
  return value;
}

// M. J. Wichura, "Algorithm AS 241: The percentage points of the normal distribution", Applied
// Statistics 37 (1988).
constexpr std::array<double, 8> kCentreTop = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                              1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                              4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                              3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr std::array<double, 8> kCentreBottom = {1.0,
                                                 4.2313330701600911252e+1,
                                                 6.8718700749205790830e+2,
                                                 5.3941960214247511077e+3,
                                                 2.1213794301586595867e+4,
                                                 3.9307895800092710610e+4,
                                                 2.8729085735721942674e+4,
                                                 5.2264952788528545610e+3};
constexpr std::array<double, 8> kMiddleTop = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                              5.76949722146069140550e0,  3.64784832476320460504e0,
                                              1.27045825245236838258e0,  2.41780725177450611770e-1,
                                              2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr std::array<double, 8> kMiddleBottom = {1.0,
                                                 2.05319162663775882187e0,
                                                 1.67638483018380384940e0,
                                                 6.89767334985100004550e-1,
                                                 1.48103976427480074590e-1,
                                                 1.51986665636164571966e-2,
                                                 5.47593808499534494600e-4,
                                                 1.05075007164441684324e-9};
constexpr std::array<double, 8> kTailTop = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                            1.78482653991729133580e0,  2.96560571828504891230e-1,
                                            2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                            2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr std::array<double, 8> kTailBottom = {1.0,
                                               5.99832206555887937690e-1,
                                               1.36929880922735805310e-1,
                                               1.48753612908506148525e-2,
                                               7.86869131145613259100e-4,
                                               1.84631831751005468180e-5,
                                               1.42151175831644588870e-7,
                                               2.04426310338993978564e-15};

/// call(i, p) for every element i in [begin, end) of tensor `name`, p uniform in (0, 1).
template <class Call>
void for_each_probability(std::string_view name, std::uint64_t seed, std::int64_t begin,
                          std::int64_t end, Call call) {
  const std::uint64_t hash = hash_of(name);
  std::array<std::uint32_t, 4> bits{};
  std::int64_t block = -1;
  for (std::int64_t i = begin; i < end; ++i) {
    if (i / 4 != block) {
      block = i / 4;
      const auto low = static_cast<std::uint64_t>(block);
      bits = philox4x32({static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                         static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)},
                        seed);
    }
    call(i, (static_cast<double>(bits[static_cast<std::size_t>(i % 4)]) + 0.5) * 0x1p-32);
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kCentreTop, r) / polynomial(kCentreBottom, r);
  }
  const double tail = std::sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double value =
      tail <= 5 ? polynomial(kMiddleTop, tail - 1.6) / polynomial(kMiddleBottom, tail - 1.6)
                : polynomial(kTailTop, tail - 5) / polynomial(kTailBottom, tail - 5);
  return q < 0 ? -value : value;
}

void fill_normal(std::string_view name, std::uint64_t seed, double deviation, std::int64_t begin,
                 std::int64_t end, float* out) {
  for_each_probability(name, seed, begin, end, [&](std::int64_t i, double p) {
    out[i - begin] = static_cast<float>(deviation * normal_quantile(p));
  });
}

void fill_uniform(std::string_view name, std::uint64_t seed, double bound, std::int64_t begin,
                  std::int64_t end, float* out) {
  for_each_probability(name, seed, begin, end, [&](std::int64_t i, double p) {
    out[i - begin] = static_cast<float>(bound * (2 * p - 1));
  });
}

}  // namespace tandem
