#include "models/layers/norm.hpp"

#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "models/layers/fused_op.hpp"
#include "models/layers/token_tiles.hpp"

namespace tandem {
namespace {

class NormedSum final : public FusedOp {
 public:
  explicit NormedSum(Norm norm) : norm_(std::move(norm)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    if (keep) {
      y_ = inputs[1].detach();
    }
    return {norm_.forward(inputs[1], {}, inputs[0])};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dout = gradients[0].contiguous();
    TiledGradients gradients_of(y_.size(0));
    const Norm norm = gradients_of.of(norm_);
    gradients_of.for_tiles([&](std::int64_t begin, std::int64_t count) {
      const at::Tensor y = y_.narrow(0, begin, count);
      norm.backward(y, dout.narrow(0, begin, count), {}, y);
    });
    gradients_of.write();
    return {dout, std::move(y_)};
  }

 private:
  Norm norm_;
  at::Tensor y_;
};

}  // namespace

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

at::Tensor Norm::forward(const at::Tensor& x, const at::Tensor& index,
                         const at::Tensor& residual) const {
  at::Tensor y = at::empty({index.defined() ? index.numel() : x.size(0), x.size(1)}, x.options());
  forward_into(x, y, index, residual);
  return y;
}

void Norm::forward_into(const at::Tensor& x, const at::Tensor& y, const at::Tensor& index,
                        const at::Tensor& residual) const {
  norm_forward(rows(x, index), y.data_ptr(),
               residual.defined() ? residual.const_data_ptr() : nullptr);
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

at::Tensor normed_sum(const at::Tensor& residual, const at::Tensor& y, Norm norm) {
  return run_fused(c10::make_intrusive<NormedSum>(std::move(norm)), {residual, y}).front();
}

}  // namespace tandem
