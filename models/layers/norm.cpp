#include "models/layers/norm.hpp"

#include <vector>

#include <ATen/ops/empty.h>

namespace tandem {

NormRows Norm::rows(const at::Tensor& x, const at::Tensor& index) const {
  NormRows n{.kind = kind, .type = dtype_of(x), .eps = eps, .rows = x.size(0), .width = x.size(1)};
  n.x = x.const_data_ptr();
  n.weight = weight.value().const_data_ptr();
  if (kind == NormKind::kLayer) {
    n.bias = bias.value().const_data_ptr();
  }
  if (index.defined()) {
    n.rows = index.numel();
    n.index = static_cast<const std::int64_t*>(index.const_data_ptr());
  }
  return n;
}

at::Tensor Norm::forward(const at::Tensor& x, const at::Tensor& index) const {
  const NormRows n = rows(x, index);
  at::Tensor y = at::empty({n.rows, n.width}, x.options());
  norm_forward(n, y.data_ptr());
  return y;
}

void Norm::backward(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& residual,
                    const at::Tensor& dx, const at::Tensor& index) const {
  std::vector<float> sums(static_cast<std::size_t>(2 * x.size(1)));
  float* dbias = sums.data() + x.size(1);
  norm_backward(rows(x, index), dy.const_data_ptr(),
                residual.defined() ? residual.const_data_ptr() : nullptr, dx.data_ptr(),
                sums.data(), dbias);
  weight.write_gradient(sums.data());
  if (kind == NormKind::kLayer) {
    bias.write_gradient(dbias);
  }
}

}  // namespace tandem
