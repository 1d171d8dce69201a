// runtime/util/random.hpp — a small seeded generator: the same numbers on every machine, compiler
// and standard library.
//
// xoshiro256** (Blackman & Vigna), seeded by splitmix64. Not for secrets.
// Thread rule: one thread at a time. fork(name) makes an independent stream out of the seed and the
// name alone, so that drawing more numbers in one place does not change those of another.
//
//   Random random(1234);   if (random.chance(0.1)) ...   Random disk = random.fork("disk");
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/util/check.hpp"

namespace tandem {

class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) noexcept : seed_(seed) {
    std::uint64_t state = seed;
    for (std::uint64_t& word : state_) {
      word = splitmix(state);
    }
  }

  constexpr std::uint64_t next() noexcept {
    const std::uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  /// Uniform in [0, n), n > 0. (The bias of a multiplication is below 2^-32 for the n that we use.)
  constexpr std::uint64_t below(std::uint64_t n) noexcept {
    TANDEM_CHECK(n > 0 && n <= std::uint64_t{1} << 32, "a range of 1 to 2^32 numbers");
    return ((next() >> 32) * n) >> 32;
  }
  /// Uniform in [low, high].
  constexpr std::int64_t between(std::int64_t low, std::int64_t high) noexcept {
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low) + 1));
  }
  /// Uniform in [0, 1).
  constexpr double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// True with probability p.
  constexpr bool chance(double p) noexcept { return uniform() < p; }

  [[nodiscard]] constexpr Random fork(std::string_view name) const noexcept {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : name) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    }
    std::uint64_t state = seed_ ^ hash;
    return Random(splitmix(state));
  }
  [[nodiscard]] constexpr Random fork(std::uint64_t number) const noexcept {
    std::uint64_t state = seed_ ^ (number * 0x9e3779b97f4a7c15 + 1);
    return Random(splitmix(state));
  }

 private:
  static constexpr std::uint64_t rotate(std::uint64_t x, int by) noexcept {
    return (x << by) | (x >> (64 - by));
  }
  static constexpr std::uint64_t splitmix(std::uint64_t& state) noexcept {
    state += 0x9e3779b97f4a7c15;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  std::uint64_t seed_;
  std::uint64_t state_[4]{};
};

}  // namespace tandem
