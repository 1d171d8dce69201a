// bench/adam/ceiling.hpp — the same reads and writes as adam_update, without the mathematics: what memory allows.
#pragma once

#include <cstddef>

#include "actors/kernels/adam.hpp"

namespace tandem::bench {

/// Reads master, moments and gradient, writes master, moments and (bf16 with bf16 gradients: non-temporal) weight.
void move_only(const AdamBuffers& buffers, std::size_t begin, std::size_t end);

}  // namespace tandem::bench
