// models/kernels/activation.hpp — the non-linear part of an MLP, forward and backward in one pass each.
//
// SwiGLU (Shazeer, 2020): a = silu(g) u from rows [g | u]. GELU in its tanh form (Hendrycks and Gimpel, 2016), written as
// x sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3), which is the same function.
#pragma once

#include <cstdint>

#include "actors/dtype.hpp"

namespace tandem {

enum class Activation : std::uint8_t { kSwiGlu, kGeluTanh };

/// Columns of the input per column of the output.
constexpr std::int64_t inputs_per_output(Activation kind) {
  return kind == Activation::kSwiGlu ? 2 : 1;
}

/// x: [rows, width * inputs_per_output], a: [rows, width].
void activation_forward(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                        const void* x, void* a);

/// In place: x becomes its gradient, `da` becomes the activation a itself (which the backward of the next layer needs).
void activation_backward(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                         void* x, void* da);

}  // namespace tandem
