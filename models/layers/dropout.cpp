#include "models/layers/dropout.hpp"

#include <ATen/ops/empty_like.h>

#include "models/layers/fused_op.hpp"
#include "models/layers/gemm.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

class Dropped final : public FusedOp {
 public:
  explicit Dropped(const DropMask& mask) : mask_(mask) {}

  Tensors forward(const Tensors& inputs, bool /*keep*/) override {
    TANDEM_CHECK(inputs[0].is_contiguous(), "the result takes its place");
    const at::Tensor y = inputs[0].detach();
    const at::Tensor residual = inputs.size() > 1 ? inputs[1].contiguous() : at::Tensor();
    drop(y, residual.defined() ? residual.const_data_ptr() : nullptr, y);
    has_residual_ = residual.defined();
    return {y};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor given = gradients[0].contiguous();
    at::Tensor dy = at::empty_like(given);
    drop(given, nullptr, dy);
    return has_residual_ ? Tensors{dy, given} : Tensors{dy};
  }

 private:
  void drop(const at::Tensor& from, const void* residual, const at::Tensor& to) const {
    const std::int64_t width = from.size(-1);
    drop_elements(mask_, dtype_of(from), from.numel() / width, width, from.const_data_ptr(),
                  residual, to.data_ptr());
  }

  DropMask mask_;
  bool has_residual_ = false;
};

}  // namespace

DropMask LayerDropout::mask(DropPlace place, std::int64_t micro_batch) const {
  const double rate = place == DropPlace::kEmbedding   ? rates.embedding
                      : place == DropPlace::kAttention ? rates.attention
                                                       : rates.residual;
  return drop_mask(rate, seed, micro_batch, layer, place);
}

DropMask from_row(DropMask mask, std::int64_t row) {
  mask.rows.begin += row;
  return mask;
}

at::Tensor dropped(const at::Tensor& y, const at::Tensor& residual, const DropMask& mask) {
  if (mask.empty()) {
    return residual.defined() ? residual + y : y;
  }
  return run_fused(c10::make_intrusive<Dropped>(mask),
                   residual.defined() ? Tensors{y, residual} : Tensors{y})
      .front();
}

}  // namespace tandem
