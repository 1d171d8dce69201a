#include "models/layers/experts.hpp"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::size_t kApartParts = 3;
constexpr std::size_t kStackedParts = 4;

/// One of the two linear layers of all experts. Rows of expert e are those of routes.begin[e], to
/// the next one's.
class ExpertLinear {
 public:
  /// Matrices [out, in], each of one or more parameters.
  explicit ExpertLinear(std::vector<JoinedWeights> apart) : apart_(std::move(apart)) {}
  /// [experts, in, out] and [experts, out].
  ExpertLinear(Weight* stacked, Weight* bias)
      : stacked_(std::span(&stacked, 1)), bias_(std::span(&bias, 1)) {}

  /// [rows, in] -> [rows, out]
  void forward(const Routes& routes, const at::Tensor& x, const at::Tensor& y) const {
    const at::Tensor bias = bias_.empty() ? at::Tensor() : bias_.value();
    matmul_rows(routes, x, y, [&](std::int64_t e, Matmul& p) {
      p.b = matrix(e);
      if (bias.defined()) {
        p.start = MatmulStart::kFrom;
        p.from = bias.select(0, e);
      }
    });
  }

  void backward_input(const Routes& routes, const at::Tensor& dy, const at::Tensor& dx) const {
    matmul_rows(routes, dy, dx, [&](std::int64_t e, Matmul& p) { p.b = matrix(e).t(); });
  }

  void backward_weight(const Routes& routes, const at::Tensor& x, const at::Tensor& dy) const {
    std::vector<Matmul> matmuls;
    const auto of_expert = [&](const at::Tensor& rows, std::int64_t e) {
      const std::int64_t begin = routes.begin[static_cast<std::size_t>(e)];
      return rows.narrow(0, begin, routes.begin[static_cast<std::size_t>(e) + 1] - begin);
    };
    for (std::size_t e = 0; e < apart_.size(); ++e) {
      const auto expert = static_cast<std::int64_t>(e);
      apart_[e].append_gradient_matmuls(of_expert(dy, expert).t(), of_expert(x, expert), matmuls);
    }
    stacked_.write_gradient_with([&](const at::Tensor& gradient, bool add) {
      for (std::int64_t e = 0; e < gradient.size(0); ++e) {
        matmuls.push_back({gradient.select(0, e), of_expert(x, e).t(), of_expert(dy, e),
                           add ? MatmulStart::kAccumulate : MatmulStart::kZero});
      }
    });
    grouped_matmul(matmuls);
  }

  /// The gradients from dy of rows that count `weights` times (null: once).
  void backward_bias(const Routes& routes, const at::Tensor& dy, const float* weights) const {
    if (bias_.empty()) {
      return;
    }
    std::vector<float> sums(static_cast<std::size_t>(routes.rule.experts * dy.size(1)));
    sums_of_experts(routes, dtype_of(dy), dy.size(1), dy.const_data_ptr(), weights, sums.data());
    bias_.write_gradient(sums.data());
  }

  [[nodiscard]] const JoinedWeights& bias() const { return bias_; }

 private:
  /// [in, out]
  [[nodiscard]] at::Tensor matrix(std::int64_t e) const {
    return apart_.empty() ? stacked_.value().select(0, e)
                          : apart_[static_cast<std::size_t>(e)].value().t();
  }

  /// One matmul for each expert that has rows; `complete` sets its right side and start.
  template <class Complete>
  void matmul_rows(const Routes& routes, const at::Tensor& from, const at::Tensor& to,
                   Complete complete) const {
    std::vector<Matmul> matmuls;
    matmuls.reserve(static_cast<std::size_t>(routes.rule.experts));
    for (std::int64_t e = 0; e < routes.rule.experts; ++e) {
      const std::int64_t begin = routes.begin[static_cast<std::size_t>(e)];
      const std::int64_t rows = routes.begin[static_cast<std::size_t>(e) + 1] - begin;
      if (rows > 0) {
        Matmul& p = matmuls.emplace_back();
        p.c = to.narrow(0, begin, rows);
        p.a = from.narrow(0, begin, rows);
        complete(e, p);
      }
    }
    grouped_matmul(matmuls);
  }

  std::vector<JoinedWeights> apart_;
  JoinedWeights stacked_, bias_;
};

struct Mixture {
  Norm norm;
  LinearWeights router;
  ExpertLinear up, down;
  ExpertShape shape;
};

Mixture mixture_of(Norm norm, LinearWeights router, std::span<Weight* const> experts,
                   const ExpertShape& shape) {
  if (shape.layout == ExpertLayout::kStacked) {
    TANDEM_CHECK(experts.size() == kStackedParts, "all experts' parameters are four");
    return {std::move(norm), std::move(router), ExpertLinear(experts[0], experts[1]),
            ExpertLinear(experts[2], experts[3]), shape};
  }
  TANDEM_CHECK(experts.size() == kApartParts * static_cast<std::size_t>(shape.count),
               "three parameters for each expert");
  std::vector<JoinedWeights> up;
  std::vector<JoinedWeights> down;
  for (std::size_t i = 0; i < experts.size(); i += kApartParts) {
    up.emplace_back(experts.subspan(i, 2));
    down.emplace_back(experts.subspan(i + 2, 1));
  }
  return {std::move(norm), std::move(router), ExpertLinear(std::move(up)),
          ExpertLinear(std::move(down)), shape};
}

class ExpertMixture final : public FusedOp {
 public:
  explicit ExpertMixture(Mixture parts) : m_(std::move(parts)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& x = inputs[0];
    const at::Tensor h = m_.norm.forward(x);
    at::Tensor logits = m_.router.forward(h);
    routes_ = route_tokens(m_.shape.rule(), dtype_of(x), x.size(0), logits.const_data_ptr());
    at::Tensor up = rows(2 * m_.shape.width, x);
    m_.up.forward(routes_, rows_of(h), up);
    const at::Tensor a = rows(m_.shape.width, x);
    activation_forward(m_.shape.activation, dtype_of(x), routes_.rows(), m_.shape.width,
                       up.const_data_ptr(), a.data_ptr());
    if (keep) {
      x_ = x.detach();
      up_ = std::move(up);
      logits_ = std::move(logits);
    } else {
      up.reset();
    }
    const at::Tensor y = rows(x.size(1), x);
    m_.down.forward(routes_, a, y);
    at::Tensor out = at::empty_like(x);
    tokens_of_rows(routes_, dtype_of(x), x.size(1), y.const_data_ptr(), true, x.const_data_ptr(),
                   out.data_ptr());
    return {out};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dout = gradients[0].contiguous();
    const at::Tensor h = m_.norm.forward(x_);
    std::vector<float> slopes = backward_experts(h, dout);
    // The experts' gradients of h, and the router's, meet in one buffer; then the norm turns it
    // into that of x.
    at::Tensor dh = at::empty_like(x_);
    {
      const at::Tensor drows = rows(x_.size(1), x_);
      m_.up.backward_input(routes_, up_, drows);
      up_.reset();
      tokens_of_rows(routes_, dtype_of(x_), x_.size(1), drows.const_data_ptr(), false, nullptr,
                     dh.data_ptr());
    }
    const at::Tensor dlogits = at::empty_like(logits_);
    route_backward(routes_, dtype_of(x_), logits_.const_data_ptr(), slopes.data(),
                   dlogits.data_ptr());
    m_.router.backward_weight(dlogits, h);
    m_.router.add_backward_input(dlogits, dh);
    m_.norm.backward(x_, dh, dout, dh);
    return {dh};
  }

 private:
  /// Gradients of the experts' weights; up_ becomes its gradient. Returns the routes' weights'
  /// gradients, row by row.
  std::vector<float> backward_experts(const at::Tensor& h, const at::Tensor& dout) {
    const DType type = dtype_of(x_);
    const std::vector<float> weights = routes_.row_weights();
    std::vector<float> slopes(weights.size());
    const at::Tensor dy = rows_of(dout);  // of weight * y
    const at::Tensor a = rows(m_.shape.width, x_);
    m_.down.backward_input(routes_, dy, a);
    weighted_activation_backward(m_.shape.activation, type, routes_.rows(), m_.shape.width,
                                 up_.data_ptr(), a.data_ptr(), weights.data(), slopes.data());
    if (!m_.down.bias().empty()) {
      add_expert_dots(routes_, type, dy.size(1), dy.const_data_ptr(),
                      m_.down.bias().value().const_data_ptr(), slopes.data());
    }
    m_.down.backward_weight(routes_, a, dy);  // a is weight * a by now
    m_.down.backward_bias(routes_, dy, weights.data());
    rows_of_tokens(routes_, type, h.size(1), h.const_data_ptr(), dy.data_ptr());
    m_.up.backward_weight(routes_, dy, up_);
    m_.up.backward_bias(routes_, up_, nullptr);
    return slopes;
  }

  [[nodiscard]] at::Tensor rows(std::int64_t width, const at::Tensor& like) const {
    return at::empty({routes_.rows(), width}, like.options());
  }
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& tokens) const {
    at::Tensor out = rows(tokens.size(1), tokens);
    rows_of_tokens(routes_, dtype_of(tokens), tokens.size(1), tokens.const_data_ptr(),
                   out.data_ptr());
    return out;
  }

  Mixture m_;
  Routes routes_;
  at::Tensor x_, up_, logits_;
};

}  // namespace

std::vector<ParameterSpec> ExpertShape::parameters(std::span<const std::string> names,
                                                   std::int64_t hidden) const {
  std::vector<ParameterSpec> all;
  if (layout == ExpertLayout::kStacked) {
    TANDEM_CHECK(names.size() == kStackedParts, "all experts' parameters are four");
    return {{names[0], {count, hidden, 2 * width}},
            {names[1], {count, 2 * width}},
            {names[2], {count, width, hidden}},
            {names[3], {count, hidden}}};
  }
  TANDEM_CHECK(names.size() == kApartParts * static_cast<std::size_t>(count),
               "three parameters for each expert");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool down = i % kApartParts == 2;
    all.push_back({names[i], {down ? hidden : width, down ? width : hidden}});
  }
  return all;
}

at::Tensor expert_mixture(const at::Tensor& x, Norm norm, LinearWeights router,
                          std::span<Weight* const> experts, const ExpertShape& shape) {
  return run_fused(c10::make_intrusive<ExpertMixture>(
                       mixture_of(std::move(norm), std::move(router), experts, shape)),
                   {x})
      .front();
}

}  // namespace tandem
