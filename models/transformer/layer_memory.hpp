// models/transformer/layer_memory.hpp — the memory of a transformer layer's activations, for the
// memory plan: for the fused layers as they allocate; for an accelerator by aten_memory.hpp.
//
// Any thread.
#pragma once

#include "engine/types/model.hpp"
#include "models/transformer/transformer_layer.hpp"

namespace tandem {

/// Returns the activations of a micro-batch of `batch` in a block: the tensors that its layers keep
/// and make.
ActivationBytes layer_activations(const LayerShape& shape, const BatchShape& batch);

}  // namespace tandem
