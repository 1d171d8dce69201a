// actors/kernels/finite.hpp — whether values are numbers.
#pragma once

#include <cstddef>

#include "actors/kernels/dtype.hpp"

namespace tandem {

/// Index of the first NaN or infinity among `count` values of `type`, which need not be aligned;
/// `count`: there is none. Reads once, at the speed of memory. Any thread.
[[nodiscard]] std::size_t first_not_finite(const void* values, DType type,
                                           std::size_t count) noexcept;

}  // namespace tandem
