// A block's half with experts, forward and backward, against the same function in double precision;
// routes and ties.
#include "models/kernels/experts.hpp"

#include <algorithm>
#include <cmath>
#include <ostream>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/layers/aten/experts.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/layers/aten/row_ops.hpp"
#include "models/layers/experts.hpp"
#include "tests/models/layers/math_support.hpp"

namespace tandem {
namespace {

using test::backward_both;
using test::expect_gradients;
using test::Parameters;
using test::random;
using test::relative_error;
using test::tolerance;
using testing::ElementsAre;

// ---- routes -------------------------------------------------------------------------------------

Routes routes_of(const RouterRule& rule, const std::vector<float>& logits) {
  const auto tokens = static_cast<std::int64_t>(logits.size()) / rule.experts;
  return route_tokens(rule, DType::kF32, tokens, logits.data());
}

TEST(Routes, TakeTheGreatestAndTheFirstOfEqualOnes) {
  const Routes r = routes_of({4, 2, true}, {1, 3, 2, 0,  //
                                            5, 5, 5, 5,  //
                                            0, 7, 1, 7});
  EXPECT_THAT(r.expert, ElementsAre(1, 2, 0, 1, 1, 3));
  EXPECT_THAT(r.begin, ElementsAre(0, 1, 4, 5, 6));
  EXPECT_THAT(r.token, ElementsAre(1, 0, 1, 2, 0, 2)) << "by expert, then by token";
  EXPECT_THAT(r.row, ElementsAre(1, 4, 0, 2, 3, 5));
  EXPECT_FLOAT_EQ(r.weight[0], std::exp(1.0F) / (std::exp(1.0F) + 1));
  EXPECT_THAT(r.row_weights(), ElementsAre(0.5F, r.weight[0], 0.5F, 0.5F, r.weight[1], 0.5F));
}

TEST(Routes, ShareTheSoftmaxOverAllWhereNotNormalised) {
  const Routes r = routes_of({3, 1, false}, {0, 1, 0, 200, 0, 0});
  EXPECT_FLOAT_EQ(r.weight[0], std::exp(1.0F) / (std::exp(1.0F) + 2));
  EXPECT_FLOAT_EQ(r.weight[1], 1.0F) << "no overflow";
}

// ---- the layer ----------------------------------------------------------------------------------

struct Case {
  ExpertLayout layout;
  Activation activation;
  bool normalised;
  std::int64_t experts, chosen, hidden, width;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.chosen << " of " << one.experts
       << (one.layout == ExpertLayout::kApart ? ", apart" : ", stacked");
}

constexpr Case kCases[] = {
    {ExpertLayout::kApart, Activation::kSwiGlu, true, 6, 2, 24, 35},
    {ExpertLayout::kApart, Activation::kSwiGlu, false, 5, 3, 37, 16},
    {ExpertLayout::kStacked, Activation::kClampedSwiGlu, true, 4, 1, 24, 19},
    {ExpertLayout::kStacked, Activation::kClampedSwiGlu, true, 7, 3, 40, 32},
    {ExpertLayout::kApart, Activation::kSwiGlu, true, 3, 3, 16, 8},  // every expert
};

class Experts : public testing::TestWithParam<std::tuple<Case, at::ScalarType>> {
 protected:
  const Case& c() const { return std::get<0>(GetParam()); }
  at::ScalarType type() const { return std::get<1>(GetParam()); }

  ExpertShape shape() const {
    return {c().experts, c().chosen, c().width, c().normalised, c().layout, c().activation};
  }
  bool stacked() const { return c().layout == ExpertLayout::kStacked; }

  /// The norm, the router's matrix (and bias), and the experts' parameters.
  std::vector<at::Tensor> initial() const {
    std::vector<at::Tensor> all = {random({c().hidden}, 1, 0.1) + 1,
                                   random({c().experts, c().hidden}, 2)};
    // The last expert is never chosen unless every one is.
    if (c().chosen < c().experts) {
      all[1][c().experts - 1].zero_();
    }
    if (stacked()) {
      all.push_back(random({c().experts}, 3, 0.1));
    }
    std::vector<std::string> names(stacked() ? 4 : static_cast<std::size_t>(3 * c().experts));
    for (const ParameterSpec& p : shape().parameters(names, c().hidden)) {
      // In fp32 some gates are cut; with 16 bits, one near the limit could be cut in one way and
      // not in the other.
      const double matrices = !stacked() ? 0.3 : type() == at::kFloat ? 1.2 : 0.2;
      const double scale = p.shape.size() == 2 && stacked() ? 0.5 : matrices;
      all.push_back(random(p.shape, 10 + all.size(), scale));
    }
    return all;
  }

  std::size_t first_expert() const { return stacked() ? 3 : 2; }

  at::Tensor run(Parameters& p, const at::Tensor& x) const {
    const auto joined = [&](std::size_t i) { return JoinedWeights(p.pointers(i, 1)); };
    const std::vector<Weight*> experts = p.pointers(first_expert(), p.size() - first_expert());
    return expert_mixture(x, {NormKind::kRms, 1e-6, joined(0), {}},
                          {joined(1), stacked() ? joined(2) : JoinedWeights(), false}, experts,
                          shape());
  }

  at::Tensor logits(Parameters& p, const at::Tensor& x, at::Tensor* h) const {
    *h = x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * p.reference(0);
    at::Tensor logits = at::matmul(*h, p.reference(1).t());
    return stacked() ? logits + p.reference(2) : logits;
  }

  /// Expert e of all tokens.
  at::Tensor expert(Parameters& p, const at::Tensor& h, std::int64_t e) const {
    const std::size_t first = first_expert();
    if (!stacked()) {
      const std::size_t i = first + static_cast<std::size_t>(3 * e);
      const at::Tensor gate = at::matmul(h, p.reference(i).t());
      return at::matmul(at::silu(gate) * at::matmul(h, p.reference(i + 1).t()),
                        p.reference(i + 2).t());
    }
    const at::Tensor both =
        at::matmul(h, p.reference(first).select(0, e)) + p.reference(first + 1).select(0, e);
    const at::Tensor pairs = both.view({both.size(0), c().width, 2});
    const at::Tensor gate = pairs.select(2, 0).clamp_max(7);
    const at::Tensor up = pairs.select(2, 1).clamp(-7, 7);
    return at::matmul((up + 1) * gate * at::sigmoid(1.702 * gate),
                      p.reference(first + 2).select(0, e)) +
           p.reference(first + 3).select(0, e);
  }

  at::Tensor reference(Parameters& p, const at::Tensor& x) const {
    at::Tensor h;
    const at::Tensor all = logits(p, x, &h);
    const auto [top, index] = at::topk(all, c().chosen, -1);
    const at::Tensor shares =
        c().normalised ? at::softmax(top, -1) : at::softmax(all, -1).gather(1, index);
    const at::Tensor weights = at::zeros_like(all).scatter(1, index, shares);
    at::Tensor out = x;
    for (std::int64_t e = 0; e < c().experts; ++e) {
      out = out + expert(p, h, e) * weights.narrow(1, e, 1);
    }
    return out;
  }

  /// Tokens whose choice rounding does not change.
  at::Tensor clear_tokens(Parameters& p, std::int64_t count) const {
    const at::Tensor x = random({4000, c().hidden}, 7).to(type()).to(at::kDouble);
    if (c().chosen == c().experts) {
      return x.narrow(0, 0, count);
    }
    at::Tensor h;
    const at::Tensor sorted =
        std::get<0>(at::sort(logits(p, x, &h).detach(), -1, /*descending=*/true));
    const at::Tensor gap = sorted.select(1, c().chosen - 1) - sorted.select(1, c().chosen);
    const at::Tensor never = logits(p, x, &h).detach().select(1, c().experts - 1);
    const at::Tensor clear = (gap > 0.4) & (sorted.select(1, c().chosen - 1) > never + 0.4);
    return x.index({clear}).narrow(0, 0, count).clone();
  }
};

TEST_P(Experts, AgreeWithDoublePrecision) {
  Parameters p(initial(), type());
  test::Input x(clear_tokens(p, 61), type());
  const at::Tensor got = run(p, x.value);
  const at::Tensor expected = reference(p, x.reference);
  EXPECT_LE(relative_error(got, expected), tolerance(type()));
  backward_both(got, expected, 8);
  EXPECT_LE(relative_error(x.value.grad(), x.reference.grad()), 2 * tolerance(type()));
  for (std::size_t i = 0; i < p.size(); ++i) {
    EXPECT_TRUE(p[i].grad_written) << "parameter " << i;
    EXPECT_LE(relative_error(p[i].grad, p.reference(i).grad()), 2 * tolerance(type()))
        << "parameter " << i;
  }
  if (!stacked() && c().chosen < c().experts) {
    for (std::size_t i = p.size() - 3; i < p.size(); ++i) {
      EXPECT_TRUE((p[i].grad == 0).all().item<bool>()) << "an expert that no token chose";
    }
  }
}

TEST_P(Experts, AreTheSameByPlainOperations) {
  Parameters p(initial(), type());
  test::Input x(clear_tokens(p, 61), type());
  const auto [h, past] =
      aten::norm(NormKind::kRms, 1e-6, x.value, JoinedWeights(p.pointers(0, 1)), {});
  const std::vector<Weight*> bias = p.pointers(2, stacked() ? 1 : 0);
  const at::Tensor logits =
      aten::linear(h, JoinedWeights(p.pointers(1, 1)), JoinedWeights(bias), false);
  const at::Tensor got =
      past +
      aten::experts(h, logits, p.pointers(first_expert(), p.size() - first_expert()), shape());
  const at::Tensor expected = reference(p, x.reference);
  EXPECT_LE(relative_error(got, expected), tolerance(type()));
  backward_both(got, expected, 8);
  EXPECT_LE(relative_error(x.value.grad(), x.reference.grad()), 2 * tolerance(type()));
  for (std::size_t i = 0; i < p.size(); ++i) {
    EXPECT_TRUE(p[i].grad_written);
    EXPECT_LE(relative_error(p[i].grad, p.reference(i).grad()), 2 * tolerance(type()))
        << "parameter " << i;
  }
}

TEST_P(Experts, AddToWhatWasWritten) {
  Parameters p(initial(), type());
  const at::Tensor tokens = clear_tokens(p, 9).to(type());
  const auto step = [&] {
    const at::Tensor x = tokens.clone().requires_grad_(true);
    torch::autograd::backward({run(p, x).sum()});
    return p.gradients().clone();
  };
  const at::Tensor once = step();
  const at::Tensor twice = step();
  EXPECT_LE(relative_error(twice, once.to(at::kDouble) * 2), tolerance(type()));
}

TEST_P(Experts, HaveTheSameBitsOnAnyNumberOfThreadsAndWithoutGradient) {
  Parameters p(initial(), type());
  const at::Tensor tokens = random({300, c().hidden}, 9).to(type());
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int count : {1, 2, 3, 5}) {
    at::set_num_threads(count);
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i].grad_written = false;
    }
    const at::Tensor x = tokens.clone().requires_grad_(true);
    const at::Tensor y = run(p, x);
    torch::autograd::backward({y}, {at::ones_like(y)});
    const std::vector<at::Tensor> now = {y.detach(), x.grad(), p.gradients().clone()};
    if (first.empty()) {
      first = now;
    }
    for (std::size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(at::equal(now[i], first[i])) << count << " threads, " << i;
    }
    const c10::AutoGradMode no_grad(false);
    EXPECT_TRUE(at::equal(run(p, tokens), first[0]));
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Types, Experts,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& info) {
                           const Case& c = std::get<0>(info.param);
                           return std::string(c.layout == ExpertLayout::kApart ? "Apart"
                                                                               : "Stacked") +
                                  (c.normalised ? "" : "Shares") + std::to_string(c.chosen) + "of" +
                                  std::to_string(c.experts) +
                                  test::name_of(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tandem
