// actors/kernels/simd_target.hpp — the compiled SIMD target that kernels use on this CPU.
#pragma once

namespace tandem {

/// Returns Highway's name of the target: "AVX3_ZEN4", "AVX2", "EMU128" (no vectors), ... Any
/// thread.
[[nodiscard]] const char* simd_target() noexcept;

/// Whether the target has vector instructions.
[[nodiscard]] bool has_simd() noexcept;

}  // namespace tandem
