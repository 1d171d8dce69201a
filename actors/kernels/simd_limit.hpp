// actors/kernels/simd_limit.hpp — limits the instructions that kernels use to fewer than the CPU
// has.
//
// With TANDEM_SIMD set, a run behaves as on a processor with fewer instructions. This serves to
// repeat the bits of such a processor, or to find a bug in one kernel. The limit is read at the
// start of the program.
#pragma once

#include <cstdint>

namespace tandem {

/// Each value also allows the instructions of the values after it.
enum class SimdLimit : std::uint8_t { kTiles, kAvx512, kAvx2, kSse4 };

/// Returns the limit that TANDEM_SIMD sets: "avx512" (no tile unit), "avx2" or "sse4"; kTiles if it
/// is "auto" or not set. Throws user_error for any other text. Any thread.
[[nodiscard]] SimdLimit simd_limit();

/// Returns whether kernels of that kind may run; true if TANDEM_SIMD has a wrong text.
[[nodiscard]] bool simd_allows(SimdLimit kind) noexcept;

}  // namespace tandem
