// models/transformer/block_memory.hpp — what a transformer block's activations take, for the plan
// of memory: of the fused layers, counted as they allocate; of an accelerator, as aten_memory.hpp
// has it.
//
// Any thread.
#pragma once

#include "engine/types/model.hpp"
#include "models/transformer/transformer_block.hpp"

namespace tandem {

/// Activations of a micro-batch of `batch` in a block: the tensors that its layers keep and make.
ActivationBytes block_activations(const BlockShape& shape, const BatchShape& batch);

}  // namespace tandem
