// runtime/util/cpu_relax.hpp — the pause of a spinning thread between two looks.
#pragma once

namespace tandem {

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tandem
