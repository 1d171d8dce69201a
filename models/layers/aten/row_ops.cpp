#include "models/layers/aten/row_ops.hpp"

#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "models/gpu/row_kernels.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem::aten {
namespace {

const RowKernels& kernels_for(const at::Tensor& x) {
  return x.is_cpu() ? RowKernels::of_host() : RowKernels::of_gpu();
}

/// The one that LibTorch's own kernels for this tensor go to.
void* stream_of(const at::Tensor& x) {
  if (x.is_cpu()) {
    return nullptr;
  }
  const c10::impl::VirtualGuardImpl device(x.device().type());
  return device.getStreamNativeHandle(device.getStream(x.device()));
}

/// Throws if a launch failed. LibTorch's profiler and our counts see each launch by its name.
void launched(int status, const char* what) {
  RECORD_FUNCTION(what, {});
  if (status != 0) {
    throw failure(ExitCode::kFailure, "device",
                  "kernel \"{}\" cannot be launched: status {} of CUDA; restart the rank", what,
                  status);
  }
}

/// c = a b, or c += a b.
void matmul_into(const Matmul& p) {
  at::Tensor c = p.c;
  if (c.scalar_type() != p.a.scalar_type()) {
    const at::Tensor product = at::mm(p.a, p.b);
    (void)(p.start == MatmulStart::kZero ? c.copy_(product) : c.add_(product));
  } else if (p.start == MatmulStart::kZero) {
    at::mm_out(c, p.a, p.b);
  } else {
    c.addmm_(p.a, p.b);
  }
}

class Linear final : public FusedOp {
 public:
  Linear(JoinedWeights weight, JoinedWeights bias, bool input_major, Result result)
      : weight_(std::move(weight)),
        bias_(std::move(bias)),
        input_major_(input_major),
        result_(result) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& x = inputs[0];
    if (keep && weight_.wants_gradient()) {
      x_ = x.detach();
    }
    const at::Tensor w = weight_.value();
    if (result_ == Result::kUnread) {
      return {without_memory(x, w.size(input_major_ ? 1 : 0))};
    }
    return {at::linear(x, input_major_ ? w.t() : w, bias_.empty() ? at::Tensor() : bias_.value())};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor w = weight_.value();
    std::vector<Matmul> matmuls;
    if (weight_.wants_gradient()) {
      input_major_ ? weight_.append_gradient_matmuls(x_.t(), dy, matmuls)
                   : weight_.append_gradient_matmuls(dy.t(), x_, matmuls);
    }
    for (const Matmul& matmul : matmuls) {
      matmul_into(matmul);
    }
    std::int64_t begin = 0;
    for (Weight* part : bias_.parts()) {
      const std::int64_t width = part->value.numel();
      if (part->wants_grad) {
        write_gradient(*part, dy.narrow(1, begin, width).sum(0, false, at::kFloat));
      }
      begin += width;
    }
    return {at::mm(dy, input_major_ ? w.t() : w)};
  }

 private:
  JoinedWeights weight_, bias_;
  bool input_major_;
  Result result_;
  at::Tensor x_;
};

/// a + b, which is not read.
class UnreadSum final : public FusedOp {
 public:
  Tensors forward(const Tensors& inputs, bool /*keep*/) override {
    return {without_memory(inputs[0], inputs[0].size(1))};
  }
  Tensors backward(const Tensors& gradients) override { return {gradients[0], gradients[0]}; }
};

/// Where a kernel writes the gradient of one weight.
WeightGradient gradient_of(const JoinedWeights& weight) {
  WeightGradient gradient;
  weight.write_gradient_with([&](const at::Tensor& to, bool add) {
    gradient = {.to = to.data_ptr(), .type = dtype_of(to), .add = add};
  });
  return gradient;
}

at::Tensor partial_sums(const at::Tensor& like, std::int64_t width) {
  return at::empty({RowKernels::kPartials, width}, like.options().dtype(at::kFloat));
}

/// x -> its norm, and x itself for what goes past, whose gradient is added here.
class Rms final : public FusedOp {
 public:
  Rms(JoinedWeights weight, double eps, bool around_one)
      : weight_(std::move(weight)), eps_(eps), around_one_(around_one) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor x = inputs[0].contiguous();
    const at::Tensor y = at::empty_like(x);
    launched(kernels_for(x).rms_forward(rows_of(x), x.const_data_ptr(), y.data_ptr(), stream_of(x)),
             "rms forward");
    if (keep) {
      x_ = x.detach();
    }
    return {y, inputs[0]};
  }

  Tensors backward(const Tensors& gradients) override {
    if (!gradients[0].defined()) {
      return {gradients[1]};
    }
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor past = gradients[1].defined() ? gradients[1].contiguous() : at::Tensor();
    const at::Tensor dx = at::empty_like(x_);
    const at::Tensor partials = partial_sums(dy, dy.size(-1));
    launched(kernels_for(dy).rms_backward(rows_of(x_), x_.const_data_ptr(), dy.const_data_ptr(),
                                          past.defined() ? past.const_data_ptr() : nullptr,
                                          dx.data_ptr(), partials.data_ptr<float>(),
                                          gradient_of(weight_), stream_of(dy)),
             "rms backward");
    x_.reset();
    return {dx};
  }

 private:
  [[nodiscard]] RmsRows rows_of(const at::Tensor& x) const {
    return {.type = dtype_of(x),
            .rows = x.numel() / x.size(-1),
            .width = x.size(-1),
            .eps = static_cast<float>(eps_),
            .offset = around_one_ ? 1.0F : 0.0F,
            .weight = weight_.value().const_data_ptr()};
  }

  JoinedWeights weight_;
  double eps_;
  bool around_one_;
  at::Tensor x_;
};

class Heads final : public FusedOp {
 public:
  Heads(const AttentionShape& shape, AttentionWeights weights, at::Tensor cosine, at::Tensor sine)
      : shape_(shape),
        weights_(std::move(weights)),
        cosine_(std::move(cosine)),
        sine_(std::move(sine)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor qkv = inputs[0].contiguous();
    const auto heads = [&](std::int64_t count) {
      return at::empty({qkv.size(0), count, shape_.head_dim}, qkv.options());
    };
    const Tensors all = {heads(shape_.heads), heads(shape_.kv_heads), heads(shape_.kv_heads)};
    const HeadRows rows = rows_of(qkv);
    launched(kernels_for(qkv).heads_forward(rows, qkv.const_data_ptr(), all[0].data_ptr(),
                                            all[1].data_ptr(), all[2].data_ptr(), stream_of(qkv)),
             "heads forward");
    if (keep && has_norms()) {
      qkv_ = qkv.detach();
    }
    return all;
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dq = gradients[0].contiguous();
    const at::Tensor dk = gradients[1].contiguous();
    const at::Tensor dv = gradients[2].contiguous();
    const at::Tensor dqkv = at::empty(
        {dq.size(0), (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim}, dq.options());
    const at::Tensor partials = has_norms() ? partial_sums(dq, 2 * shape_.head_dim) : at::Tensor();
    launched(kernels_for(dq).heads_backward(
                 rows_of(dq), qkv_.defined() ? qkv_.const_data_ptr() : nullptr,
                 {dq.const_data_ptr(), dk.const_data_ptr(), dv.const_data_ptr()}, dqkv.data_ptr(),
                 has_norms() ? partials.data_ptr<float>() : nullptr, gradient_of(weights_.q_norm),
                 gradient_of(weights_.k_norm), stream_of(dq)),
             "heads backward");
    return {dqkv};
  }

 private:
  [[nodiscard]] bool has_norms() const { return !weights_.q_norm.empty(); }
  /// `like`: with the rows of qkv, of its type and device.
  [[nodiscard]] HeadRows rows_of(const at::Tensor& like) const {
    HeadRows rows{.type = dtype_of(like),
                  .rows = like.size(0),
                  .length = like.size(0),
                  .heads = shape_.heads,
                  .kv_heads = shape_.kv_heads,
                  .head_dim = shape_.head_dim,
                  .norm_eps = static_cast<float>(shape_.norm_eps),
                  .norm_offset = shape_.norm == NormKind::kRmsAroundOne ? 1.0F : 0.0F};
    if (has_norms()) {
      rows.q_norm = weights_.q_norm.value().const_data_ptr();
      rows.k_norm = weights_.k_norm.value().const_data_ptr();
    }
    if (cosine_.defined()) {
      TANDEM_CHECK(
          cosine_.is_contiguous() && sine_.is_contiguous() && like.size(0) % cosine_.size(0) == 0,
          "tables have a row for each token, or for each place in a row");
      rows.length = cosine_.size(0);
      rows.rotary = 2 * cosine_.size(1);
      rows.cosine = static_cast<const float*>(cosine_.const_data_ptr());
      rows.sine = static_cast<const float*>(sine_.const_data_ptr());
    }
    return rows;
  }

  AttentionShape shape_;
  AttentionWeights weights_;
  at::Tensor cosine_, sine_;
  at::Tensor qkv_;  // of norms, which need their input
};

class Activated final : public FusedOp {
 public:
  explicit Activated(Activation kind) : kind_(kind) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor x = inputs[0].contiguous();
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() /= inputs_per_output(kind_);
    const at::Tensor a = at::empty(sizes, x.options());
    launched(
        kernels_for(x).activation_forward(kind_, dtype_of(x), a.numel() / a.size(-1), a.size(-1),
                                          x.const_data_ptr(), a.data_ptr(), stream_of(x)),
        "activation forward");
    if (keep) {
      x_ = x.detach();
    }
    return {a};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dx = activation_gradient(kind_, x_, gradients[0]);
    x_.reset();
    return {dx};
  }

 private:
  Activation kind_;
  at::Tensor x_;
};

}  // namespace

at::Tensor plain_norm(NormKind kind, double eps, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& bias) {
  const std::int64_t width = x.size(-1);
  switch (kind) {
    case NormKind::kRms:
      return at::rms_norm(x, {width}, weight, eps);
    case NormKind::kRmsAroundOne:  // 1 + w is rounded in fp32 alone
      return at::rms_norm(x.to(at::kFloat), {width}, weight.to(at::kFloat) + 1, eps)
          .to(x.scalar_type());
    case NormKind::kLayer:
      break;
  }
  return at::layer_norm(x, {width}, weight, bias, eps);
}

at::Tensor linear(const at::Tensor& x, const JoinedWeights& weight, const JoinedWeights& bias,
                  bool input_major, Result result) {
  return run_fused(c10::make_intrusive<Linear>(weight, bias, input_major, result), {x}).front();
}

at::Tensor sum(const at::Tensor& a, const at::Tensor& b, Result result) {
  return result == Result::kRead ? a + b
                                 : run_fused(c10::make_intrusive<UnreadSum>(), {a, b}).front();
}

bool can_norm(std::int64_t width) { return width <= RowKernels::kMostNormWidth; }

Normed norm(NormKind kind, double eps, const at::Tensor& x, const JoinedWeights& weight,
            const JoinedWeights& bias) {
  const auto value_of = [](const JoinedWeights& one) {
    return one.empty() ? at::Tensor() : one.parts().front()->value;
  };
  if (kind == NormKind::kLayer || !can_norm(x.size(-1))) {
    return {plain_norm(kind, eps, x, value_of(weight), value_of(bias)), x};
  }
  const Tensors all =
      run_fused(c10::make_intrusive<Rms>(weight, eps, kind == NormKind::kRmsAroundOne), {x});
  return {all[0], all[1]};
}

bool can_split_heads(const AttentionShape& shape) {
  return shape.head_dim <= RowKernels::kMostHeadDim;
}

SplitHeads split_heads(const at::Tensor& qkv, const AttentionShape& shape,
                       const AttentionWeights& weights, const at::Tensor& cosine,
                       const at::Tensor& sine) {
  TANDEM_CHECK(can_split_heads(shape), "asked before");
  const Tensors all = run_fused(c10::make_intrusive<Heads>(shape, weights, cosine, sine), {qkv});
  return {all[0], all[1], all[2]};
}

at::Tensor activation(Activation kind, const at::Tensor& x) {
  return run_fused(c10::make_intrusive<Activated>(kind), {x}).front();
}

at::Tensor activation_gradient(Activation kind, const at::Tensor& x, const at::Tensor& of_a) {
  const at::Tensor da = of_a.contiguous();
  const at::Tensor dx = at::empty_like(x);
  launched(kernels_for(da).activation_backward(kind, dtype_of(da), da.numel() / da.size(-1),
                                               da.size(-1), x.const_data_ptr(), da.const_data_ptr(),
                                               dx.data_ptr(), stream_of(da)),
           "activation backward");
  return dx;
}

at::Tensor losses_of_rows(const at::Tensor& logits, const at::Tensor& labels, std::int64_t ignored,
                          const at::Tensor& scale) {
  TANDEM_CHECK(logits.is_contiguous() && labels.is_contiguous(), "rows lie side by side");
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  launched(
      kernels_for(logits).loss(
          {.type = dtype_of(logits),
           .rows = logits.size(0),
           .width = logits.size(1),
           .logits = logits.data_ptr(),
           .labels = static_cast<const std::int64_t*>(labels.const_data_ptr()),
           .ignored = ignored,
           .scale = scale.defined() ? static_cast<const float*>(scale.const_data_ptr()) : nullptr,
           .losses = losses.data_ptr<float>()},
          stream_of(logits)),
      "loss");
  return losses;
}

}  // namespace tandem::aten
