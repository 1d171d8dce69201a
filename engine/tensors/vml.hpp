// engine/tensors/vml.hpp — makes ATen's elementwise functions (tanh, exp, log, ...) return the same
// bits from the first call on.
//
// On x86 ATen computes them with oneMKL's vector functions, each of which looks up its kernel at
// its first call. If two threads make that call at once (two ranks of one process, or ATen's
// threads on one large tensor), oneMKL 2024.2 may run one of them with a kernel of low accuracy:
// relative errors of 5e-5, only in that call (pytorch/pytorch issue 188792).
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace tandem {

/// Calls each of these functions once, on few elements. Call it before a thread computes with them.
/// Any thread; a second caller waits for the first. The first call takes some milliseconds.
void warm_up_vml();

/// One of these functions, for x in (0, 1).
struct VectorFunction {
  const char* name;
  at::Tensor (*run)(const at::Tensor& x);
};
[[nodiscard]] std::span<const VectorFunction> vector_functions() noexcept;

}  // namespace tandem
