// bench/adam/ceiling.hpp — the same reads and writes as Adam's apply_update, without the
// mathematics: what memory allows.
#pragma once

#include <cstddef>

#include "actors/kernels/update/optimizer_step.hpp"

namespace tandem::bench {

/// Reads gradient, master and moments (and the weight, where it is half of the master) where the
/// update reads them, and writes what it writes, as it does: in place, or past the caches. The bits
/// stay what they were. Gradients: fp32 without weights, else bf16.
void move_only(const UpdateBuffers& buffers, std::size_t begin, std::size_t end);

}  // namespace tandem::bench
