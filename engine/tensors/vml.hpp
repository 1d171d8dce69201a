// engine/tensors/vml.hpp — ATen's functions of single elements (tanh, exp, log, ...) have
// their own bits from the first call on.
//
// On x86 ATen computes them with oneMKL's vector functions, each of which looks up its kernel at
// its first call. Where two threads make that call at once (two ranks of one process, or the team
// of one large tensor), oneMKL 2024.2 may run one of them with a kernel of low accuracy: relative
// errors of 5e-5, in that call alone (pytorch/pytorch issue 188792).
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace tandem {

/// Calls each of these functions once, on few elements; to be called before a thread computes with
/// them. Any thread; a second caller waits for the first. Some milliseconds the first time.
void warm_up_vml();

/// One of these functions, for x in (0, 1).
struct VectorFunction {
  const char* name;
  at::Tensor (*run)(const at::Tensor& x);
};
[[nodiscard]] std::span<const VectorFunction> vector_functions() noexcept;

}  // namespace tandem
