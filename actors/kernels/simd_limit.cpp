#include "actors/kernels/simd_limit.hpp"

#include <cstdlib>
#include <string_view>

#include <hwy/targets.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// Highway's bits of the targets that are better than this one are the lower ones.
constexpr std::int64_t better_than(std::int64_t target) { return target - 1; }

SimdLimit limit_or_none() noexcept {
  try {
    return simd_limit();
  } catch (const Error&) {  // an engine's start says so
    return SimdLimit::kTiles;
  }
}

/// Before the first kernel is chosen.
const SimdLimit g_limit = [] {
  const SimdLimit limit = limit_or_none();
  if (limit == SimdLimit::kAvx2) {
    hwy::DisableTargets(better_than(HWY_AVX2));
  } else if (limit == SimdLimit::kSse4) {
    hwy::DisableTargets(better_than(HWY_SSE4));
  }
  return limit;
}();

}  // namespace

SimdLimit simd_limit() {
  const char* text = std::getenv("TANDEM_SIMD");
  const std::string_view given = text != nullptr ? text : "";
  if (given.empty() || given == "auto") {
    return SimdLimit::kTiles;
  }
  if (given == "avx512") {
    return SimdLimit::kAvx512;
  }
  if (given == "avx2") {
    return SimdLimit::kAvx2;
  }
  if (given == "sse4") {
    return SimdLimit::kSse4;
  }
  throw user_error("environment", "TANDEM_SIMD is \"{}\"; it takes auto, avx512, avx2 or sse4",
                   given);
}

bool simd_allows(SimdLimit kind) noexcept { return kind >= g_limit; }

}  // namespace tandem

/// The libraries' users link this file by its name (actors/CMakeLists.txt): its initialiser acts.
extern "C" const bool tandem_simd_limit = true;
