// actors/kernels/finite.hpp — finds values that are not finite.
#pragma once

#include <cstddef>

#include "actors/kernels/dtype.hpp"

namespace tandem {

/// Returns the index of the first NaN or infinity among `count` values of `type`, which need not be
/// aligned; `count` if there is none. Reads the values once, at the speed of memory. Any thread.
[[nodiscard]] std::size_t first_not_finite(const void* values, DType type,
                                           std::size_t count) noexcept;

}  // namespace tandem
