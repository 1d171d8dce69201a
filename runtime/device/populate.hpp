// runtime/device/populate.hpp — gives a large range of memory its pages before it is used, by
// several threads: the kernel clears a page in the time of a thread that touches it first.
//
// Threads of their own, which have ended when a call returns. Any thread.
#pragma once

#include <cstddef>
#include <span>

namespace tandem {

/// Gives the range its pages and keeps its content. `node`: the NUMA node that pages should come
/// from, if the kernel lets them; -1: any. `threads`: at most, where the range is large; 0: one for
/// each CPU that this process may use.
void populate(std::span<std::byte> memory, int node = -1, int threads = 0);

/// Fills the range with zeros, likewise.
void fill_with_zeros(std::span<std::byte> memory, int threads = 0);

}  // namespace tandem
