#include "models/layers/weights.hpp"

#include <utility>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include "models/kernels/embedding.hpp"
#include "models/kernels/norm.hpp"
#include "models/layers/gemm.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

at::Tensor joined(const std::vector<Weight*>& parts, at::Tensor Weight::* member) {
  const at::Tensor& first = parts.front()->*member;
  if (parts.size() == 1) {
    return first.detach();
  }
  std::vector<std::int64_t> sizes = first.sizes().vec();
  const auto* expected = static_cast<const std::byte*>(first.const_data_ptr()) + first.nbytes();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor& part = parts[i]->*member;
    TANDEM_CHECK(part.const_data_ptr() == expected, "joined parameters lie side by side");
    expected += part.nbytes();
    sizes[0] += part.size(0);
  }
  return at::as_strided(first.detach(), sizes, first.strides());
}

}  // namespace

at::Tensor JoinedWeights::value() const { return joined(parts_, &Weight::value); }

void JoinedWeights::write_gradient(const float* sums, float scale) const {
  for (Weight* part : parts_) {
    if (!part->wants_grad) {
      return;  // all parts are of one unit, so no other part wants it
    }
    scale_into(dtype_of(part->grad), part->grad.numel(), sums, scale, part->grad_written,
               part->grad.data_ptr());
    sums += part->grad.numel();
    part->grad_written = true;
  }
}

void JoinedWeights::write_gradient_matmul(const at::Tensor& a, const at::Tensor& b) const {
  std::vector<Matmul> matmuls;
  append_gradient_matmuls(a, b, matmuls);
  for (const Matmul& p : matmuls) {
    matmul(p.c, p.a, p.b, p.start);
  }
}

void JoinedWeights::append_gradient_matmuls(const at::Tensor& a, const at::Tensor& b,
                                            std::vector<Matmul>& matmuls) const {
  if (!parts_.front()->wants_grad) {
    return;  // parts are of one unit: none does
  }
  bool alike = true;
  for (const Weight* part : parts_) {
    alike = alike && part->grad_written == parts_.front()->grad_written;
  }
  const auto start = [](bool written) {
    return written ? AccumulateMode::kAccumulate : AccumulateMode::kZero;
  };
  if (alike) {
    matmuls.push_back({joined(parts_, &Weight::grad), a, b, start(parts_.front()->grad_written)});
  }
  std::int64_t row = 0;
  for (Weight* part : parts_) {
    if (!alike) {
      matmuls.push_back(
          {part->grad, a.narrow(0, row, part->grad.size(0)), b, start(part->grad_written)});
    }
    row += part->grad.size(0);
    part->grad_written = true;
  }
}

void JoinedWeights::write_zero_gradient() const {
  write_gradient_with([](const at::Tensor& gradient, bool add) {
    if (!add) {
      gradient.zero_();
    }
  });
}

std::int64_t LinearWeights::out_features() const {
  return weight.value().size(input_major ? 1 : 0);
}

at::Tensor LinearWeights::forward(const at::Tensor& x, const at::Tensor& residual) const {
  const at::Tensor w = input_major ? weight.value() : weight.value().t();
  at::Tensor y = at::empty({x.size(0), w.size(1)}, x.options());
  if (residual.defined()) {
    matmul(y, x, w, AccumulateMode::kFrom, residual);
    if (!bias.empty()) {
      y.add_(bias.value());
    }
  } else if (!bias.empty()) {
    matmul(y, x, w, AccumulateMode::kFrom, bias.value());
  } else {
    matmul(y, x, w);
  }
  return y;
}

void LinearWeights::backward_input(const at::Tensor& dy, const at::Tensor& dx) const {
  matmul(dx, dy, input_major ? weight.value().t() : weight.value());
}

void LinearWeights::add_backward_input(const at::Tensor& dy, const at::Tensor& dx) const {
  matmul(dx, dy, input_major ? weight.value().t() : weight.value(), AccumulateMode::kAccumulate);
}

void LinearWeights::backward_weight(const at::Tensor& dy, const at::Tensor& x) const {
  if (input_major) {
    weight.write_gradient_matmul(x.t(), dy);
  } else {
    weight.write_gradient_matmul(dy.t(), x);
  }
  if (!bias.empty()) {
    std::vector<float> sums(static_cast<std::size_t>(dy.size(1)));
    column_sums(dy.const_data_ptr(), dtype_of(dy), dy.size(0), dy.size(1), sums.data());
    bias.write_gradient(sums.data());
  }
}

}  // namespace tandem
