// models/transformer/aten_memory.hpp — the memory of the layers of layers.hpp on an accelerator,
// for the memory plan.
//
// It is counted from the tensors that each node of row_ops.hpp keeps, and that autograd keeps for
// the operations between them; LibTorch's attention is taken to be a fused one. Pure: any thread.
#pragma once

#include <cstdint>

#include "engine/types/model.hpp"
#include "models/transformer/transformer_layer.hpp"

namespace tandem::aten {

[[nodiscard]] ActivationBytes layer_memory(const LayerShape& shape, const BatchShape& batch);

/// The head's loss: logits in chunks, the output matrix's gradient in fp32 if it `learns`.
[[nodiscard]] ActivationBytes loss_memory(std::int64_t hidden, std::int64_t vocabulary,
                                          const BatchShape& batch, bool learns = true);

}  // namespace tandem::aten
