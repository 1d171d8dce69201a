// actors/kernels/simd_limit.hpp — the widest instructions that kernels use, where the user wants
// less than the CPU has.
//
// TANDEM_SIMD makes a run behave as on a lesser processor: to repeat its bits, or to look for a
// fault of one kernel. The limit holds from the start of the program on.
#pragma once

#include <cstdint>

namespace tandem {

/// Each includes those behind it.
enum class SimdLimit : std::uint8_t { kTiles, kAvx512, kAvx2, kSse4 };

/// TANDEM_SIMD: "avx512" (no tile unit), "avx2", "sse4"; kTiles where it is not set, or "auto".
/// Throws user_error for any other text. Any thread.
[[nodiscard]] SimdLimit simd_limit();

/// Whether kernels of that kind may run; true where the text of TANDEM_SIMD is wrong.
[[nodiscard]] bool simd_allows(SimdLimit kind) noexcept;

}  // namespace tandem
