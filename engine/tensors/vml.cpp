#include "engine/tensors/vml.hpp"

#include <array>
#include <mutex>

#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>

namespace tandem {

namespace {

// As ATen/cpu/vml.h names them.
constexpr auto kFunctions = std::to_array<VectorFunction>({{"acos", &at::acos},
                                                           {"asin", &at::asin},
                                                           {"atan", &at::atan},
                                                           {"cos", &at::cos},
                                                           {"erf", &at::erf},
                                                           {"erfc", &at::erfc},
                                                           {"erfinv", &at::erfinv},
                                                           {"exp", &at::exp},
                                                           {"log", &at::log},
                                                           {"log10", &at::log10},
                                                           {"log2", &at::log2},
                                                           {"sin", &at::sin},
                                                           {"sqrt", &at::sqrt},
                                                           {"tan", &at::tan},
                                                           {"tanh", &at::tanh},
                                                           {"trunc", &at::trunc}});

}  // namespace

std::span<const VectorFunction> vector_functions() noexcept { return kFunctions; }

void warm_up_vml() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({8}, 0.5, type);
      for (const VectorFunction& function : kFunctions) {
        (void)function.run(x);
      }
    }
  });
}

}  // namespace tandem
