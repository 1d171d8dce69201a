// engine/tensors/batch_check.hpp — checks that a batch has the shapes and types that segments rely
// on. Kernels read inputs and labels through bare pointers, so errors must be found here.
#pragma once

#include "engine/tensors/segment.hpp"

namespace tandem {

/// The use of a batch.
enum class BatchUse : std::uint8_t { kLoss, kLogits };

/// Throws user_error unless `inputs` are int64 [rows, tokens], with labels int64 of the same shape,
/// or floats [rows, ...], with labels of as many rows, int64 or floats; every extent is at least 1.
/// Positions, where there are some, have the tokens' shape, and no memory beside them. Labels are
/// needed for a loss alone. Reads shapes and no values. Any thread.
void check_batch(const Batch& batch, BatchUse use);

}  // namespace tandem
