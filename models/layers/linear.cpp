#include "models/layers/linear.hpp"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include "engine/types/recomputation.hpp"
#include "models/kernels/scratch.hpp"
#include "models/layers/fused_op.hpp"
#include "models/layers/token_tiles.hpp"

namespace tandem {
namespace {

/// The rows of a tile, of a matrix that may be undefined.
at::Tensor rows_of(const at::Tensor& all, std::int64_t begin, std::int64_t count) {
  return all.defined() ? all.narrow(0, begin, count) : all;
}

// Memory for what an MLP makes for one tile, up to tens of MiB. Memory of such a size that is freed
// and asked for again tile after tile leaves malloc with a heap of its own for each, so this stays.
thread_local Scratch up_scratch, activation_scratch;

/// Memory of `scratch`, until the next such tensor.
at::Tensor tile_in(Scratch& scratch, std::int64_t rows, std::int64_t width,
                   const at::Tensor& like) {
  const auto bytes = static_cast<std::size_t>(rows * width) * like.element_size();
  return at::from_blob(scratch.get<std::byte>(bytes), {rows, width}, like.options());
}

at::Tensor contiguous_or_none(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }

class NormLinear final : public FusedOp {
 public:
  NormLinear(Norm norm, LinearWeights linear)
      : norm_(std::move(norm)), linear_(std::move(linear)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& x = inputs[0];
    if (keep) {
      x_ = x.detach();
    }
    at::Tensor y = at::empty({x.size(0), linear_.out_features()}, x.options());
    for_token_tiles(x.size(0), [&](std::int64_t begin, std::int64_t count) {
      from_token(linear_, begin)
          .forward_into(norm_.forward(rows_of(x, begin, count)), rows_of(y, begin, count));
    });
    return {y, x};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor residual = contiguous_or_none(gradients[1]);
    if (!gradients[0].defined()) {
      return {residual};
    }
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x_);
    TiledGradients gradients_of(x_.size(0));
    const Norm norm = gradients_of.of(norm_);
    const LinearWeights linear = gradients_of.of(linear_);
    gradients_of.for_tiles([&](std::int64_t begin, std::int64_t count) {
      const LinearWeights here = from_token(linear, begin);
      const at::Tensor x = rows_of(x_, begin, count);
      const at::Tensor dyt = rows_of(dy, begin, count);
      // These rows hold in turn the normalised input (computed again), its gradient, and that of x.
      const at::Tensor h = rows_of(dx, begin, count);
      norm_.forward_into(x, h);
      here.backward_weight(dyt, h);
      here.backward_input(dyt, h);
      norm.backward(x, h, rows_of(residual, begin, count), h);
    });
    gradients_of.write();
    return {dx};
  }

 private:
  Norm norm_;
  LinearWeights linear_;
  at::Tensor x_;
};

class Linear final : public FusedOp {
 public:
  explicit Linear(LinearWeights weights) : weights_(std::move(weights)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    residual_ = inputs.size() > 1;
    if (keep) {
      x_ = inputs[0].detach();
    }
    return {weights_.forward(inputs[0], residual_ ? inputs[1] : at::Tensor())};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x_);
    TiledGradients gradients_of(x_.size(0));
    const LinearWeights weights = gradients_of.of(weights_);
    gradients_of.for_tiles([&](std::int64_t begin, std::int64_t count) {
      const LinearWeights here = from_token(weights, begin);
      const at::Tensor dyt = rows_of(dy, begin, count);
      here.backward_weight(dyt, rows_of(x_, begin, count));
      here.backward_input(dyt, rows_of(dx, begin, count));
    });
    gradients_of.write();
    // The gradient of the residual is dy itself.
    return residual_ ? Tensors{dx, dy} : Tensors{dx};
  }

 private:
  LinearWeights weights_;
  at::Tensor x_;
  bool residual_ = false;
};

class Mlp final : public FusedOp {
 public:
  Mlp(MlpWeights weights, MlpSum sum) : w_(std::move(weights)), adds_(sum == MlpSum::kAdded) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& x = inputs[0];
    const bool again = keep && is_recomputation();
    const bool unread = again && adds_;  // the segment's result
    at::Tensor y = unread ? without_memory(x, w_.down.out_features())
                          : at::empty({x.size(0), w_.down.out_features()}, x.options());
    if (keep) {
      x_ = x.detach();
    }
    if (keep && !again) {
      wide_ = at::empty({x.size(0), w_.up.out_features()}, x.options());
    }
    if (!unread) {
      for_token_tiles(x.size(0), [&](std::int64_t begin, std::int64_t count) {
        forward_tile(rows_of(x, begin, count), begin, rows_of(y, begin, count));
      });
    }
    return adds_ ? Tensors{y} : Tensors{y, x};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor residual = contiguous_or_none(adds_ ? gradients[0] : gradients[1]);
    if (!gradients[0].defined()) {
      return {residual};
    }
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x_);
    TiledGradients gradients_of(x_.size(0));
    const MlpWeights tiled = {gradients_of.of(w_.norm), gradients_of.of(w_.up), w_.activation,
                              gradients_of.of(w_.down)};
    gradients_of.for_tiles([&](std::int64_t begin, std::int64_t count) {
      backward_tile(tiled, begin, count, rows_of(dy, begin, count), rows_of(residual, begin, count),
                    rows_of(dx, begin, count));
    });
    wide_.reset();
    gradients_of.write();
    return {dx};
  }

 private:
  [[nodiscard]] at::Tensor activated_like(const at::Tensor& up) const {
    return tile_in(activation_scratch, up.size(0), up.size(1) / inputs_per_output(w_.activation),
                   up);
  }

  /// Up's product with h, in its place in wide_ if that is kept.
  [[nodiscard]] at::Tensor up_of(const at::Tensor& h, std::int64_t begin) const {
    const LinearWeights linear = from_token(w_.up, begin);
    const at::Tensor up = wide_.defined() ? rows_of(wide_, begin, h.size(0))
                                          : tile_in(up_scratch, h.size(0), w_.up.out_features(), h);
    linear.forward_into(h, up);
    return up;
  }

  void forward_tile(const at::Tensor& x, std::int64_t begin, const at::Tensor& y) const {
    const at::Tensor up = up_of(w_.norm.forward(x), begin);
    const at::Tensor a = activated_like(up);
    activation_forward(w_.activation, dtype_of(up), up.size(0), a.size(1), up.const_data_ptr(),
                       a.data_ptr());
    from_token(w_.down, begin).forward_into(a, y, adds_ ? x : at::Tensor());
  }

  /// `h`: of dx; holds in turn the normalised input (computed again), its gradient, and that of x.
  void backward_tile(const MlpWeights& to, std::int64_t begin, std::int64_t count,
                     const at::Tensor& dy, const at::Tensor& residual, const at::Tensor& h) const {
    const at::Tensor x = rows_of(x_, begin, count);
    w_.norm.forward_into(x, h);
    const at::Tensor up = wide_.defined() ? rows_of(wide_, begin, count) : up_of(h, begin);
    const LinearWeights up_here = from_token(to.up, begin);
    const LinearWeights down_here = from_token(to.down, begin);
    {
      const at::Tensor da = activated_like(up);
      down_here.backward_input(dy, da);
      activation_backward(w_.activation, dtype_of(up), count, da.size(1), up.data_ptr(),
                          da.data_ptr());
      down_here.backward_weight(dy, da);  // by now the activation itself
    }
    up_here.backward_weight(up, h);
    up_here.backward_input(up, h);
    to.norm.backward(x, h, residual, h);
  }

  MlpWeights w_;
  bool adds_;
  at::Tensor x_;
  at::Tensor wide_;  // what Up gives, for all tokens
};

}  // namespace

std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, Norm norm,
                                              LinearWeights linear) {
  Tensors out = run_fused(c10::make_intrusive<NormLinear>(std::move(norm), std::move(linear)), {x});
  return {std::move(out[0]), std::move(out[1])};
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& residual, LinearWeights weights) {
  return run_fused(c10::make_intrusive<Linear>(std::move(weights)),
                   residual.defined() ? Tensors{x, residual} : Tensors{x})
      .front();
}

std::pair<at::Tensor, at::Tensor> mlp(const at::Tensor& x, MlpWeights weights, MlpSum sum) {
  Tensors out = run_fused(c10::make_intrusive<Mlp>(std::move(weights), sum), {x});
  return {std::move(out[0]), out.size() > 1 ? std::move(out[1]) : at::Tensor()};
}

}  // namespace tandem
