// models/kernels/cross_entropy.hpp — loss and gradient of rows of logits, in place.
#pragma once

#include <cstdint>

#include "actors/kernels/dtype.hpp"

namespace tandem {

/// Per row r: losses[r] = -log softmax(logits[r])[labels[r]], and logits[r] becomes scale *
/// (softmax - onehot(label)), the gradient of scale * loss, in `gradient_type` at gradient[r]
/// (which may be the logits themselves if the types agree; null: no gradient wanted). Rows lie
/// `vocabulary` elements apart, in the logits and in the gradient.
void cross_entropy(DType logits_type, void* logits, DType gradient_type, void* gradient,
                   const std::int64_t* labels, std::int64_t rows, std::int64_t vocabulary,
                   float scale, double* losses);

}  // namespace tandem
