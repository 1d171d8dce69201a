// actors/kernels/simd_target.hpp — which of the compiled widths the kernels run with on this CPU.
#pragma once

namespace tandem {

/// Highway's name of it: "AVX3_ZEN4", "AVX2", "EMU128" (no vectors), ... Any thread.
[[nodiscard]] const char* simd_target() noexcept;

/// Whether there are vectors at all.
[[nodiscard]] bool has_simd() noexcept;

}  // namespace tandem
