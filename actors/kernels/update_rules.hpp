// actors/kernels/update_rules.hpp — the kernels behind apply_update(), one source file per optimizer. Nobody else calls
// them: the buffers were checked there.
#pragma once

#include <cstddef>

#include "actors/kernels/optimizer_step.hpp"

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

}  // namespace tandem::detail
