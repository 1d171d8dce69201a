// actors/kernels/copy.hpp — a copy that bypasses the caches.
#pragma once

#include <cstddef>

namespace tandem {

/// Copies as memcpy does, for data that is not read soon: it uses non-temporal stores, which do not
/// read the lines that they write. Any thread. After it has returned, other threads see the stores
/// like ordinary ones.
void copy_past_caches(void* to, const void* from, std::size_t bytes);

}  // namespace tandem
