// actors/kernels/update/update_rules.hpp — the kernels that apply_update() calls after checking
// their buffers: one per optimizer and state layout, each a source file in instances/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/kernels/update/optimizer_step.hpp"

namespace tandem::detail {

/// Updates elements [begin, begin + count). `rounding_bits`: of seed, step and the position's upper
/// half, for stochastic rounding; the range doesn't reach over a multiple of 2^32 positions.
template <class Step>
using UpdateKernel = void(const Step& step, std::uint32_t rounding_bits,
                          const UpdateBuffers& buffers, std::size_t begin, std::size_t count);

UpdateKernel<AdamStep> update_adam, update_adam_split, update_adam_bf16, update_adam_int8;
UpdateKernel<SgdStep> update_sgd;
UpdateKernel<LionStep> update_lion, update_lion_bf16, update_lion_int8;
UpdateKernel<AdagradStep> update_adagrad, update_adagrad_split;
UpdateKernel<AlongStep> update_along;

}  // namespace tandem::detail
