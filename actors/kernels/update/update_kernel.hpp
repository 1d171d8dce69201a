// actors/kernels/update/update_kernel.hpp — the kernels that apply_update() calls after checking
// their buffers: one per optimizer and state layout (kernel-inl.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/kernels/update/optimizer_step.hpp"

namespace tandem::detail {

/// Updates elements [begin, begin + count). `rounding_bits` is the key of stochastic rounding, made
/// of seed, step and the position's upper half. The range does not cross a multiple of 2^32
/// positions.
template <class Step, StateLayout kLayout>
void update_kernel(const Step& step, std::uint32_t rounding_bits, const UpdateBuffers& buffers,
                   std::size_t begin, std::size_t count);

}  // namespace tandem::detail
