#include "models/layers/experts.hpp"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include "engine/types/recomputation.hpp"
#include "models/layers/fused_op.hpp"
#include "models/layers/token_tiles.hpp"
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
};

Mixture mixture_of(Norm norm, LinearWeights router, std::span<Weight* const> experts,
                   const ExpertShape& shape) {
  if (shape.layout == ExpertLayout::kStacked) {
    TANDEM_CHECK(experts.size() == kStackedParts, "all experts' parameters are four");
    return {std::move(norm), std::move(router), ExpertLinear(experts[0], experts[1]),
            ExpertLinear(experts[2], experts[3])};
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
          ExpertLinear(std::move(down))};
}

class ExpertMixture final : public FusedOp {
 public:
  ExpertMixture(Norm norm, LinearWeights router, std::span<Weight* const> experts,
                const ExpertShape& shape)
      : shape_(shape),
        experts_(experts.begin(), experts.end()),
        m_(mixture_of(std::move(norm), std::move(router), experts, shape)) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& x = inputs[0];
    if (keep) {
      x_ = x.detach();
    }
    if (keep && is_recomputation()) {  // the segment's result is not read: only its shape
      return {at::empty_strided(x.sizes(), {0, 0}, x.options())};
    }
    at::Tensor out = at::empty_like(x);
    for_token_tiles(x.size(0), [&](std::int64_t begin, std::int64_t count) {
      Tile tile = forward_tile(x.narrow(0, begin, count), out.narrow(0, begin, count));
      if (keep) {
        tiles_.push_back(std::move(tile));
      }
    });
    return {out};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dout = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x_);
    TiledGradients gradients_of(x_.size(0));
    const Mixture to = mixture_of(gradients_of.of(m_.norm), gradients_of.of(m_.router),
                                  gradients_of.of(experts_), shape_);
    std::size_t next = 0;
    gradients_of.for_tiles([&](std::int64_t begin, std::int64_t count) {
      const at::Tensor x = x_.narrow(0, begin, count);
      const at::Tensor h = m_.norm.forward(x);
      Tile tile = next < tiles_.size() ? std::exchange(tiles_[next++], {}) : inputs_of(h);
      backward_tile(to, tile, x, h, dout.narrow(0, begin, count), dx.narrow(0, begin, count));
    });
    gradients_of.write();
    return {dx};
  }

 private:
  /// The values of a tile's tokens that the backward needs.
  struct Tile {
    Routes routes;
    at::Tensor up, logits;  // rows before the activation; the router's logits
  };

  [[nodiscard]] Tile inputs_of(const at::Tensor& h) const {
    Tile tile;
    tile.logits = m_.router.forward(h);
    tile.routes = route_tokens(shape_.rule(), dtype_of(h), h.size(0), tile.logits.const_data_ptr());
    tile.up = rows(tile.routes, 2 * shape_.width, h);
    m_.up.forward(tile.routes, rows_of(tile.routes, h), tile.up);
    return tile;
  }

  [[nodiscard]] Tile forward_tile(const at::Tensor& x, const at::Tensor& out) const {
    Tile tile = inputs_of(m_.norm.forward(x));
    const Routes& routes = tile.routes;
    const at::Tensor a = rows(routes, shape_.width, x);
    activation_forward(shape_.activation, dtype_of(x), routes.rows(), shape_.width,
                       tile.up.const_data_ptr(), a.data_ptr());
    const at::Tensor y = rows(routes, x.size(1), x);
    m_.down.forward(routes, a, y);
    tokens_of_rows(routes, dtype_of(x), x.size(1), y.const_data_ptr(), true, x.const_data_ptr(),
                   out.data_ptr());
    return tile;
  }

  void backward_tile(const Mixture& to, Tile& tile, const at::Tensor& x, const at::Tensor& h,
                     const at::Tensor& dout, const at::Tensor& dh) const {
    const DType type = dtype_of(x);
    std::vector<float> slopes = backward_experts(to, tile, h, dout);
    // The experts' gradients of h, and the router's, meet in one buffer; then the norm turns it
    // into that of x.
    {
      const at::Tensor drows = rows(tile.routes, x.size(1), x);
      to.up.backward_input(tile.routes, tile.up, drows);
      tile.up.reset();
      tokens_of_rows(tile.routes, type, x.size(1), drows.const_data_ptr(), false, nullptr,
                     dh.data_ptr());
    }
    const at::Tensor dlogits = at::empty_like(tile.logits);
    route_backward(tile.routes, type, tile.logits.const_data_ptr(), slopes.data(),
                   dlogits.data_ptr());
    to.router.backward_weight(dlogits, h);
    to.router.add_backward_input(dlogits, dh);
    to.norm.backward(x, dh, dout, dh);
  }

  /// Gradients of the experts' weights; tile.up becomes its gradient. Returns the routes' weights'
  /// gradients, row by row.
  [[nodiscard]] std::vector<float> backward_experts(const Mixture& to, Tile& tile,
                                                    const at::Tensor& h,
                                                    const at::Tensor& dout) const {
    const DType type = dtype_of(h);
    const Routes& routes = tile.routes;
    const std::vector<float> weights = routes.row_weights();
    std::vector<float> slopes(weights.size());
    const at::Tensor dy = rows_of(routes, dout);  // of weight * y
    const at::Tensor a = rows(routes, shape_.width, h);
    to.down.backward_input(routes, dy, a);
    weighted_activation_backward(shape_.activation, type, routes.rows(), shape_.width,
                                 tile.up.data_ptr(), a.data_ptr(), weights.data(), slopes.data());
    if (!to.down.bias().empty()) {
      add_expert_dots(routes, type, dy.size(1), dy.const_data_ptr(),
                      to.down.bias().value().const_data_ptr(), slopes.data());
    }
    to.down.backward_weight(routes, a, dy);  // a is weight * a by now
    to.down.backward_bias(routes, dy, weights.data());
    rows_of_tokens(routes, type, h.size(1), h.const_data_ptr(), dy.data_ptr());
    to.up.backward_weight(routes, dy, tile.up);
    to.up.backward_bias(routes, tile.up, nullptr);
    return slopes;
  }

  [[nodiscard]] static at::Tensor rows(const Routes& routes, std::int64_t width,
                                       const at::Tensor& like) {
    return at::empty({routes.rows(), width}, like.options());
  }
  [[nodiscard]] static at::Tensor rows_of(const Routes& routes, const at::Tensor& tokens) {
    at::Tensor out = rows(routes, tokens.size(1), tokens);
    rows_of_tokens(routes, dtype_of(tokens), tokens.size(1), tokens.const_data_ptr(),
                   out.data_ptr());
    return out;
  }

  ExpertShape shape_;
  std::vector<Weight*> experts_;
  Mixture m_;
  std::vector<Tile> tiles_;  // none: all is computed again
  at::Tensor x_;
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
  return run_fused(
             c10::make_intrusive<ExpertMixture>(std::move(norm), std::move(router), experts, shape),
             {x})
      .front();
}

}  // namespace tandem
