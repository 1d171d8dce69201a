// actors/kernels/update/update_rules.hpp — the kernels behind apply_update(), one source file per
// optimizer. Nobody else calls them: the buffers were checked there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/kernels/update/optimizer_step.hpp"

namespace tandem::detail {

// Elements [begin, begin + count).
void update_adam(const AdamStep& step, const UpdateBuffers& buffers, std::size_t begin,
                 std::size_t count);
void update_sgd(const SgdStep& step, const UpdateBuffers& buffers, std::size_t begin,
                std::size_t count);
void update_lion(const LionStep& step, const UpdateBuffers& buffers, std::size_t begin,
                 std::size_t count);
void update_adagrad(const AdagradStep& step, const UpdateBuffers& buffers, std::size_t begin,
                    std::size_t count);

// The same with state in another layout. `rounding_bits`: of seed, step and the position's upper
// half; the range doesn't reach over a multiple of 2^32 positions.
void update_adam_split(const AdamStep& step, const UpdateBuffers& buffers, std::size_t begin,
                       std::size_t count);
void update_adagrad_split(const AdagradStep& step, const UpdateBuffers& buffers, std::size_t begin,
                          std::size_t count);
void update_adam_bf16(const AdamStep& step, std::uint32_t rounding_bits,
                      const UpdateBuffers& buffers, std::size_t begin, std::size_t count);
void update_lion_bf16(const LionStep& step, std::uint32_t rounding_bits,
                      const UpdateBuffers& buffers, std::size_t begin, std::size_t count);
void update_adam_int8(const AdamStep& step, std::uint32_t rounding_bits,
                      const UpdateBuffers& buffers, std::size_t begin, std::size_t count);
void update_lion_int8(const LionStep& step, std::uint32_t rounding_bits,
                      const UpdateBuffers& buffers, std::size_t begin, std::size_t count);

}  // namespace tandem::detail
