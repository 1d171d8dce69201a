// actors/kernels/copy.hpp — a copy that leaves the caches to others.
#pragma once

#include <cstddef>

namespace tandem {

/// As memcpy, for what is not read soon: non-temporal stores, which spare the read of the lines
/// that they write. Any thread; visible to others as ordinary stores are once it has returned.
void copy_past_caches(void* to, const void* from, std::size_t bytes);

}  // namespace tandem
