// models/kernels/activation.hpp — the non-linear part of an MLP, forward and backward in one pass
// each.
//
// SwiGLU (Shazeer, 2020): a = silu(g) u from rows [g | u]. GELU in its tanh form (Hendrycks and
// Gimpel, 2016), written as x sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3), which is the same
// function; GeGLU: a = gelu(g) u from rows [g | u]. gpt-oss's SwiGLU: from rows with gate and up in
// turn, a = (u + 1) g sigmoid(1.702 g), where g is cut at 7 and u at -7 and 7.
#pragma once

#include <cstdint>

#include "actors/kernels/dtype.hpp"

namespace tandem {

enum class Activation : std::uint8_t { kSwiGlu, kGeluTanh, kGeGluTanh, kClampedSwiGlu };

// The constants of gpt-oss's SwiGLU.
constexpr float kGateSlope = 1.702F;
constexpr float kGateLimit = 7.0F;

/// Columns of the input per column of the output.
constexpr std::int64_t inputs_per_output(Activation kind) {
  return kind == Activation::kGeluTanh ? 1 : 2;
}

/// x: [rows, width * inputs_per_output], a: [rows, width].
void activation_forward(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                        const void* x, void* a);

/// In place: x becomes its gradient, `da` becomes the activation a itself (which the backward of
/// the next layer needs).
void activation_backward(Activation kind, DType type, std::int64_t rows, std::int64_t width,
                         void* x, void* da);

/// The same if the next operation takes weights[r] a[r]: `da` is the gradient of weights[r] a[r]
/// and becomes that product itself; slopes[r] = <da[r], a[r]>, the gradient of the weight.
void weighted_activation_backward(Activation kind, DType type, std::int64_t rows,
                                  std::int64_t width, void* x, void* da, const float* weights,
                                  float* slopes);

}  // namespace tandem
