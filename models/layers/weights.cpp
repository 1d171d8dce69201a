#include "models/layers/weights.hpp"

#include <algorithm>
#include <utility>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

void write_gradient(Weight& weight, const at::Tensor& sums) {
  if (weight.wants_grad) {
    (void)(weight.grad_written ? weight.grad.add_(sums) : weight.grad.copy_(sums));
    weight.grad_written = true;
  }
}

bool JoinedWeights::wants_gradient() const {
  return std::ranges::any_of(parts_, &Weight::wants_grad);
}

at::Tensor JoinedWeights::value() const { return joined(parts_, &Weight::value); }

void JoinedWeights::write_gradient(const float* sums, float scale) const {
  for (Weight* part : parts_) {
    if (part->wants_grad) {
      scale_into(dtype_of(part->grad), part->grad.numel(), sums, scale, part->grad_written,
                 part->grad.data_ptr());
      part->grad_written = true;
    }
    sums += part->grad.numel();
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
  bool alike = parts_.front()->wants_grad;
  for (const Weight* part : parts_) {
    alike = alike && part->wants_grad && part->grad_written == parts_.front()->grad_written;
  }
  const auto start = [](bool written) {
    return written ? MatmulStart::kAccumulate : MatmulStart::kZero;
  };
  if (alike) {
    matmuls.push_back({joined(parts_, &Weight::grad), a, b, start(parts_.front()->grad_written)});
  }
  std::int64_t row = 0;
  for (Weight* part : parts_) {
    if (!alike && part->wants_grad) {
      matmuls.push_back(
          {part->grad, a.narrow(0, row, part->grad.size(0)), b, start(part->grad_written)});
    }
    row += part->grad.size(0);
    part->grad_written = part->grad_written || part->wants_grad;
  }
}

void JoinedWeights::write_zero_gradient() const {
  write_gradient_with([](const at::Tensor& gradient, bool add) {
    if (!add) {
      gradient.zero_();
    }
  });
}

namespace {

/// x without what is dropped.
at::Tensor dropped_input(const at::Tensor& x, const DropMask& mask) {
  if (mask.empty()) {
    return x;
  }
  at::Tensor kept = at::empty_like(x);
  drop_elements(mask, dtype_of(x), x.size(0), x.size(1), x.const_data_ptr(), nullptr,
                kept.data_ptr());
  return kept;
}

/// Calls call(part, its B, the first of its columns among the narrow ones) for each part.
template <class Call>
void for_each_part(const Adapters& adapters, Call call) {
  std::int64_t first = 0;
  for (const Adapters::Part& part : adapters.parts) {
    const at::Tensor b = part.b.value();
    call(part, b, first);
    first += b.size(1);
  }
}

}  // namespace

at::Tensor Adapters::narrowed(const at::Tensor& x) const {
  const at::Tensor all = a.value();
  at::Tensor u = at::empty({x.size(0), all.size(0)}, x.options());
  matmul(u, dropped_input(x, drop), all.t());
  return scale == 1 ? u : u.mul_(scale);
}

at::Tensor Adapters::narrowed_gradient(const at::Tensor& dy) const {
  at::Tensor du = at::empty({dy.size(0), a.value().size(0)}, dy.options());
  for_each_part(*this, [&](const Part& part, const at::Tensor& b, std::int64_t first) {
    matmul(du.narrow(1, first, b.size(1)), dy.narrow(1, part.begin, b.size(0)), b);
  });
  return scale == 1 ? du : du.mul_(scale);
}

void Adapters::add_forward(const at::Tensor& x, const at::Tensor& y) const {
  const at::Tensor u = narrowed(x);
  for_each_part(*this, [&](const Part& part, const at::Tensor& b, std::int64_t first) {
    matmul(y.narrow(1, part.begin, b.size(0)), u.narrow(1, first, b.size(1)), b.t(),
           MatmulStart::kAccumulate);
  });
}

void Adapters::add_backward_input(const at::Tensor& dy, const at::Tensor& dx) const {
  const at::Tensor du = narrowed_gradient(dy);
  if (drop.empty()) {
    matmul(dx, du, a.value(), MatmulStart::kAccumulate);
    return;
  }
  const at::Tensor kept = at::empty_like(dx);
  matmul(kept, du, a.value());
  dx.add_(dropped_input(kept, drop));
}

void Adapters::backward_weight(const at::Tensor& dy, const at::Tensor& x) const {
  const at::Tensor u = narrowed(x);
  for_each_part(*this, [&](const Part& part, const at::Tensor& b, std::int64_t first) {
    part.b.write_gradient_matmul(dy.narrow(1, part.begin, b.size(0)).t(),
                                 u.narrow(1, first, b.size(1)));
  });
  a.write_gradient_matmul(narrowed_gradient(dy).t(), dropped_input(x, drop));
}

std::int64_t LinearWeights::out_features() const {
  return weight.value().size(input_major ? 1 : 0);
}

at::Tensor LinearWeights::forward(const at::Tensor& x, const at::Tensor& residual) const {
  at::Tensor y = at::empty({x.size(0), out_features()}, x.options());
  forward_into(x, y, residual);
  return y;
}

void LinearWeights::forward_into(const at::Tensor& x, const at::Tensor& y,
                                 const at::Tensor& residual) const {
  const at::Tensor w = input_major ? weight.value() : weight.value().t();
  if (residual.defined()) {
    matmul(y, x, w, MatmulStart::kFrom, residual);
    if (!bias.empty()) {
      y.add_(bias.value());
    }
  } else if (!bias.empty()) {
    matmul(y, x, w, MatmulStart::kFrom, bias.value());
  } else {
    matmul(y, x, w);
  }
  if (!adapters.empty()) {
    adapters.add_forward(x, y);
  }
}

void LinearWeights::backward_input(const at::Tensor& dy, const at::Tensor& dx) const {
  matmul(dx, dy, input_major ? weight.value().t() : weight.value());
  if (!adapters.empty()) {
    adapters.add_backward_input(dy, dx);
  }
}

void LinearWeights::add_backward_input(const at::Tensor& dy, const at::Tensor& dx) const {
  matmul(dx, dy, input_major ? weight.value().t() : weight.value(), MatmulStart::kAccumulate);
  if (!adapters.empty()) {
    adapters.add_backward_input(dy, dx);
  }
}

void LinearWeights::backward_weight(const at::Tensor& dy, const at::Tensor& x) const {
  if (input_major) {
    weight.write_gradient_matmul(x.t(), dy);
  } else {
    weight.write_gradient_matmul(dy.t(), x);
  }
  if (!adapters.empty()) {
    adapters.backward_weight(dy, x);
  }
  if (bias.wants_gradient()) {
    std::vector<float> sums(static_cast<std::size_t>(dy.size(1)));
    column_sums(dy.const_data_ptr(), dtype_of(dy), dy.size(0), dy.size(1), sums.data());
    bias.write_gradient(sums.data());
  }
}

}  // namespace tandem
