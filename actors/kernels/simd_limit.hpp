// actors/kernels/simd_limit.hpp — limits the instructions that kernels use, if the user wants less
// than the CPU has.
//
// With TANDEM_SIMD a run behaves as on a lesser processor: to repeat its bits, or to find a bug in
// one kernel. The limit is read at the start of the program.
#pragma once

#include <cstdint>

namespace tandem {

/// Each value allows those after it, too.
enum class SimdLimit : std::uint8_t { kTiles, kAvx512, kAvx2, kSse4 };

/// TANDEM_SIMD: "avx512" (no tile unit), "avx2", "sse4"; kTiles where it is not set, or "auto".
/// Throws user_error for any other text. Any thread.
[[nodiscard]] SimdLimit simd_limit();

/// Whether kernels of that kind may run; true where the text of TANDEM_SIMD is wrong.
[[nodiscard]] bool simd_allows(SimdLimit kind) noexcept;

}  // namespace tandem
