// actors/kernels/copy.hpp — a copy that bypasses the caches.
#pragma once

#include <cstddef>

namespace tandem {

/// As memcpy, for data that is not read soon: uses non-temporal stores, which do not read the lines
/// that they write. Any thread; once it has returned, other threads see the stores like ordinary
/// ones.
void copy_past_caches(void* to, const void* from, std::size_t bytes);

}  // namespace tandem
