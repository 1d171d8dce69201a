// Every fused layer, forward and backward, against the plain composition of ATen operators in
// double precision.
#include "models/layers/aten/layers.hpp"

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "models/layers/attention.hpp"
#include "models/layers/embedding.hpp"
#include "models/layers/linear.hpp"
#include "models/transformer/loss_head.hpp"
#include "runtime/util/error.hpp"
#include "tests/models/layers/attention_reference.hpp"
#include "tests/models/layers/math_support.hpp"

namespace tandem {
namespace {

using test::attention_by_the_book;
using test::AttentionCase;
using test::backward_both;
using test::expect_gradients;
using test::Input;
using test::Parameters;
using test::random;
using test::relative_error;
using test::rms;
using test::tolerance;

class Layers : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType type() const { return GetParam(); }
  void expect_near(const at::Tensor& got, const at::Tensor& reference, const char* what) const {
    EXPECT_LE(relative_error(got, reference), tolerance(type())) << what;
  }
};

JoinedWeights join(Parameters& p, std::size_t begin, std::size_t count = 1) {
  return JoinedWeights(p.pointers(begin, count));
}

TEST_P(Layers, NormLinearOfJoinedWeights) {
  Parameters p({random({37}, 1) + 1, random({11, 37}, 2), random({6, 37}, 3), random({5, 37}, 4)},
               type());
  Input x(random({29, 37}, 5), type());
  const auto [y, same] =
      norm_linear(x.value, {NormKind::kRms, 1e-6, join(p, 0), {}}, {join(p, 1, 3), {}, false});
  const at::Tensor h = rms(x.reference, p.reference(0), 1e-6);
  const at::Tensor w = at::cat({p.reference(1), p.reference(2), p.reference(3)});
  const at::Tensor expected = at::matmul(h, w.t());
  expect_near(y, expected, "y");
  // The residual path joins inside the layer.
  backward_both(at::cat({y, same}, 1), at::cat({expected, x.reference}, 1), 6);
  expect_near(x.value.grad(), x.reference.grad(), "dx");
  expect_gradients(p, type());
}

TEST_P(Layers, LayerNormLinearWithBiasInputMajor) {
  Parameters p({random({24}, 1) + 1, random({24}, 2), random({24, 50}, 3), random({50}, 4)},
               type());
  Input x(random({70, 24}, 5) + 0.5, type());
  const auto [y, same] = norm_linear(x.value, {NormKind::kLayer, 1e-5, join(p, 0), join(p, 1)},
                                     {join(p, 2), join(p, 3), true});
  const at::Tensor h = at::layer_norm(x.reference, {24}, p.reference(0), p.reference(1), 1e-5);
  const at::Tensor expected = at::matmul(h, p.reference(2)) + p.reference(3);
  expect_near(y, expected, "y");
  backward_both(y, expected, 6);
  expect_near(x.value.grad(), x.reference.grad(), "dx");
  expect_gradients(p, type());
}

TEST_P(Layers, NormedSumAroundOne) {
  Parameters p({random({37}, 1)}, type());
  Input x(random({70, 37}, 2, 3.0), type());
  Input residual(random({70, 37}, 3), type());
  // The layer overwrites its input in the backward, so it gets a copy within the graph.
  const at::Tensor y =
      normed_sum(residual.value, x.value.clone(), {NormKind::kRmsAroundOne, 1e-6, join(p, 0), {}});
  const at::Tensor expected = residual.reference + rms(x.reference, p.reference(0) + 1, 1e-6);
  expect_near(y, expected, "y");
  backward_both(y, expected, 4);
  expect_near(x.value.grad(), x.reference.grad(), "dx");
  expect_near(residual.value.grad(), residual.reference.grad(), "dresidual");
  expect_gradients(p, type());
}

TEST_P(Layers, LinearWithResidualAndBias) {
  Parameters p({random({19, 33}, 1), random({19}, 2)}, type());
  Input x(random({8, 33}, 3), type());
  Input residual(random({8, 19}, 4), type());
  const at::Tensor y = linear(x.value, residual.value, {join(p, 0), join(p, 1), false});
  const at::Tensor expected =
      at::matmul(x.reference, p.reference(0).t()) + p.reference(1) + residual.reference;
  expect_near(y, expected, "y");
  backward_both(y, expected, 5);
  expect_near(x.value.grad(), x.reference.grad(), "dx");
  expect_near(residual.value.grad(), residual.reference.grad(), "dresidual");
  expect_gradients(p, type());
}

at::Tensor activated(Activation kind, const at::Tensor& x) {
  const std::int64_t width = x.size(1) / inputs_per_output(kind);
  if (kind == Activation::kSwiGlu) {
    return at::silu(x.narrow(1, 0, width)) * x.narrow(1, width, width);
  }
  if (kind == Activation::kGeGluTanh) {
    return at::gelu(x.narrow(1, 0, width), "tanh") * x.narrow(1, width, width);
  }
  if (kind == Activation::kClampedSwiGlu) {
    const at::Tensor pairs = x.view({x.size(0), width, 2});
    const at::Tensor gate = pairs.select(2, 0).clamp_max(7);
    return (pairs.select(2, 1).clamp(-7, 7) + 1) * gate * at::sigmoid(1.702 * gate);
  }
  return at::gelu(x, "tanh");
}

constexpr Activation kActivations[] = {Activation::kSwiGlu, Activation::kGeluTanh,
                                       Activation::kGeGluTanh, Activation::kClampedSwiGlu};

TEST_P(Layers, Activations) {
  for (const Activation kind : kActivations) {
    const std::int64_t width = 35;
    // Large values too: the exponential must neither overflow nor lose its sign.
    Input x(random({21, width * inputs_per_output(kind)}, 2, 4.0), type());
    const double large = type() == at::kHalf ? 40.0 : 200.0;  // its square still fits into fp16
    x.value.detach()[0].fill_(-large);
    x.value.detach()[1].fill_(large);
    x.value.detach()[2].fill_(7.0);  // where gpt-oss's are cut
    x.reference.detach().copy_(x.value.detach());
    const at::Tensor reference = activated(kind, x.reference);
    const at::Tensor a = at::empty({21, width}, x.value.options().requires_grad(false));
    activation_forward(kind, dtype_of(a), 21, width, x.value.const_data_ptr(), a.data_ptr());
    expect_near(a, reference, "a");
    const at::Tensor da = random({21, width}, 3).to(type());
    torch::autograd::backward({reference}, {da.to(at::kDouble)});
    activation_backward(kind, dtype_of(a), 21, width, x.value.data_ptr(), da.data_ptr());
    expect_near(x.value, x.reference.grad(), "dx");
    EXPECT_TRUE(at::equal(da, a));
  }
}

TEST_P(Layers, Mlp) {
  for (const Activation kind : kActivations) {
    for (const MlpSum sum : {MlpSum::kAdded, MlpSum::kGiven}) {
      const std::int64_t width = 35;
      const std::int64_t up = width * inputs_per_output(kind);
      Parameters p({random({12}, 1) + 1, random({up, 12}, 2, 0.3), random({up}, 3),
                    random({12, width}, 4, 0.3), random({12}, 5)},
                   type());
      Input x(random({21, 12}, 6), type());
      const auto [y, same] = mlp(x.value,
                                 {{NormKind::kRms, 1e-6, join(p, 0), {}},
                                  {join(p, 1), join(p, 2), false},
                                  kind,
                                  {join(p, 3), join(p, 4), false}},
                                 sum);
      const at::Tensor wide =
          at::matmul(rms(x.reference, p.reference(0), 1e-6), p.reference(1).t()) + p.reference(2);
      const at::Tensor reference =
          x.reference + at::matmul(activated(kind, wide), p.reference(3).t()) + p.reference(4);
      EXPECT_EQ(same.defined(), sum == MlpSum::kGiven);
      const at::Tensor got = same.defined() ? same + y : y;
      const double limit = type() == at::kFloat ? 5e-6 : 4e-2;
      EXPECT_LE(relative_error(got, reference), limit);
      backward_both(got, reference, 7);
      EXPECT_LE(relative_error(x.value.grad(), x.reference.grad()), limit);
      for (std::size_t i = 0; i < p.size(); ++i) {
        EXPECT_LE(relative_error(p[i].grad, p.reference(i).grad()), limit) << "parameter " << i;
      }
    }
  }
}

std::shared_ptr<RotaryTable> usual_rotary(std::int64_t dim) {
  return std::make_shared<RotaryTable>(
      RotaryScaling{.kind = RotaryKind::kDefault, .theta = 1e4, .dim = dim});
}

struct AttentionRun {
  explicit AttentionRun(const AttentionCase& c, at::ScalarType type)
      : qkv(random({c.batch * c.length, (c.heads + 2 * c.kv_heads) * c.head_dim}, 1), type),
        weights({random({c.head_dim}, 2, 0.2) + 1, random({c.head_dim}, 3, 0.2) + 1,
                 random({c.heads}, 7)},
                type),
        shape{c.heads, c.kv_heads, c.head_dim, 1e-6, c.rotary ? usual_rotary(c.head_dim) : nullptr,
              c.window},
        reference(attention_by_the_book(
            c, qkv.reference,
            {weights.reference(0), weights.reference(1), weights.reference(2), {}})) {}
  AttentionWeights fused(const AttentionCase& c) {
    return {c.norms ? join(weights, 0) : JoinedWeights(),
            c.norms ? join(weights, 1) : JoinedWeights(),
            c.sinks ? join(weights, 2) : JoinedWeights()};
  }

  Input qkv;
  Parameters weights;
  AttentionShape shape;
  at::Tensor reference;
};

const AttentionCase kAttentionCases[] = {{2, 1, 2, 1, 8, true, true},
                                         {1, 7, 3, 3, 16, false, false},
                                         {2, 65, 4, 2, 32, true, true},
                                         {1, 130, 6, 2, 20, true, true},
                                         {1, 64, 2, 2, 64, false, true},
                                         {2, 33, 4, 1, 10, true, false},
                                         {2, 70, 4, 2, 16, false, true, 5},
                                         {1, 200, 4, 2, 16, true, true, 64},
                                         {1, 9, 2, 1, 8, false, true, 9},
                                         {2, 40, 4, 2, 16, false, true, 1, true},
                                         {2, 130, 6, 3, 16, false, true, 33, true},
                                         {1, 66, 4, 1, 8, true, true, 0, true},
                                         // of several tiles of keys
                                         {1, 800, 2, 1, 8, true, true},
                                         {1, 900, 2, 1, 8, false, true, 760, true}};

TEST_P(Layers, Attention) {
  for (const AttentionCase& c : kAttentionCases) {
    SCOPED_TRACE(testing::Message() << "length " << c.length << " head_dim " << c.head_dim);
    AttentionRun run(c, type());
    const at::Tensor got = causal_attention(run.qkv.value, c.length, run.shape, run.fused(c));
    expect_near(got, run.reference, "context");
    backward_both(got, run.reference, 4);
    // With one key the scores don't matter: what is left of their gradient is rounding.
    if (c.length > 1) {
      EXPECT_LE(relative_error(run.qkv.value.grad(), run.qkv.reference.grad()),
                type() == at::kFloat ? 1e-5 : 3e-2);
      for (std::size_t i = 0; i < 3; ++i) {
        if (i < 2 ? c.norms : c.sinks) {
          EXPECT_LE(relative_error(run.weights[i].grad, run.weights.reference(i).grad()),
                    type() == at::kFloat ? 1e-5 : 4e-2)
              << i;
        }
      }
    }
  }
}

TEST_P(Layers, AtenAttention) {
  for (const AttentionCase& c : kAttentionCases) {
    SCOPED_TRACE(testing::Message() << "length " << c.length << " head_dim " << c.head_dim);
    AttentionRun run(c, type());
    const at::Tensor got = aten::attention(run.qkv.value, c.length, run.shape, run.fused(c));
    EXPECT_LE(relative_error(got, run.reference), type() == at::kFloat ? 5e-6 : 3e-2);
    backward_both(got, run.reference, 4);
    if (c.length > 1) {
      EXPECT_LE(relative_error(run.qkv.value.grad(), run.qkv.reference.grad()),
                type() == at::kFloat ? 2e-5 : 4e-2);
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (i < 2 ? c.norms && c.length > 1 : c.sinks) {
        EXPECT_LE(
            relative_error(test::gradient_of(run.weights[i]), run.weights.reference(i).grad()),
            type() == at::kFloat ? 2e-5 : 5e-2)
            << i;
      }
    }
  }
}

/// The rows of positions [from, to) of every sequence.
at::Tensor rows_of(const AttentionCase& c, const at::Tensor& all, std::int64_t from,
                   std::int64_t to) {
  return all.detach()
      .view({c.batch, c.length, -1})
      .narrow(1, from, to - from)
      .reshape({c.batch * (to - from), -1})
      .contiguous();
}

TEST_P(Layers, AttentionContinuesATextInPieces) {
  const c10::AutoGradMode no_grad(false);
  for (const AttentionCase& c : kAttentionCases) {
    SCOPED_TRACE(testing::Message() << "length " << c.length << " head_dim " << c.head_dim);
    AttentionRun run(c, type());
    at::Tensor memory;
    at::Tensor aten_memory;
    for (std::int64_t from = 0; from < c.length;) {
      const std::int64_t to = std::min(c.length, from + (from == 0       ? 1 + c.length / 2
                                                         : from % 2 == 0 ? 1
                                                                         : 11));
      const at::Tensor qkv = rows_of(c, run.qkv.value, from, to);
      const at::Tensor expected = rows_of(c, run.reference, from, to);
      const at::Tensor got =
          causal_attention(qkv, to - from, run.shape, run.fused(c), {from, &memory});
      const double scale = run.reference.abs().max().item<double>();
      const auto error = [&](const at::Tensor& some) {
        return (some.to(at::kDouble) - expected).abs().max().item<double>() / scale;
      };
      EXPECT_LE(error(got), tolerance(type())) << from;
      EXPECT_LE(
          error(aten::attention(qkv, to - from, run.shape, run.fused(c), {from, &aten_memory})),
          type() == at::kFloat ? 5e-6 : 3e-2)
          << from;
      from = to;
    }
  }
}

TEST_P(Layers, EmbeddingWithPositionsAndPadding) {
  Parameters p({random({13, 9}, 1), random({12, 9}, 2)}, type());
  const at::Tensor tokens = at::tensor({1, 5, 5, 7, 0, 12, 3, 5, 7, 1}, at::kLong).view({2, 5});
  const at::Tensor got = embedding(tokens, p[0], &p[1], 7);
  const at::Tensor expected =
      at::embedding(p.reference(0), tokens, 7) + p.reference(1).narrow(0, 0, 5);
  expect_near(got, expected, "out");
  backward_both(got, expected, 3);
  expect_gradients(p, type());
  EXPECT_EQ(p[0].grad[7].abs().max().item<float>(), 0.0F) << "the padding row learns nothing";
}

TEST_P(Layers, EmbeddingScalesTheTableAlone) {
  Parameters p({random({13, 9}, 1), random({12, 9}, 2)}, type());
  const at::Tensor tokens = at::tensor({1, 5, 5, 7, 0, 12, 3, 5, 7, 1}, at::kLong).view({2, 5});
  const at::Tensor got = embedding(tokens, p[0], &p[1], std::nullopt, 0, 6.5F);
  const at::Tensor expected =
      6.5 * at::embedding(p.reference(0), tokens) + p.reference(1).narrow(0, 0, 5);
  expect_near(got, expected, "out");
  backward_both(got, expected, 3);
  expect_gradients(p, type());
}

TEST_P(Layers, EmbeddingAddsToATiedGradient) {
  Parameters p({random({6, 4}, 1)}, type());
  p[0].grad.fill_(2.0);
  p[0].grad_written = true;
  const at::Tensor tokens = at::tensor({1, 3, 3}, at::kLong).view({1, 3});
  const at::Tensor got = embedding(tokens, p[0], nullptr, std::nullopt);
  torch::autograd::backward({got}, {at::ones_like(got)});
  EXPECT_TRUE((p[0].grad[0] == 2.0).all().item<bool>());
  EXPECT_TRUE((p[0].grad[1] == 3.0).all().item<bool>());
  EXPECT_TRUE((p[0].grad[3] == 4.0).all().item<bool>());
}

TEST_P(Layers, EmbeddingRefusesTokensOutside) {
  Parameters p({random({6, 4}, 1)}, type());
  const at::Tensor tokens = at::tensor({1, 6}, at::kLong).view({1, 2});
  EXPECT_THROW(embedding(tokens, p[0], nullptr, std::nullopt), Error);
}

/// Loss of the head next to the composition; returns the loss.
float compare_heads(at::ScalarType type, std::int64_t batch, std::int64_t length,
                    std::int64_t vocabulary, const at::Tensor& labels) {
  const std::int64_t hidden = 24;
  Parameters p({random({hidden}, 1, 0.1) + 1, random({vocabulary, hidden}, 2, 0.3)}, type);
  Input x(random({batch, length, hidden}, 3), type);
  const at::Tensor loss =
      loss_head(x.value, labels, {NormKind::kRms, 1e-6, join(p, 0), {}}, join(p, 1));
  const at::Tensor logits = at::matmul(rms(x.reference, p.reference(0), 1e-6), p.reference(1).t());
  const at::Tensor expected =
      at::cross_entropy_loss(logits.narrow(1, 0, length - 1).reshape({-1, vocabulary}),
                             labels.narrow(1, 1, length - 1).reshape({-1}));
  EXPECT_LE(relative_error(loss, expected), type == at::kFloat ? 1e-6 : 1e-2);
  torch::autograd::backward({loss}, {at::full({}, 0.5)});
  torch::autograd::backward({expected}, {at::full({}, 0.5, at::kDouble)});
  EXPECT_LE(relative_error(x.value.grad(), x.reference.grad()), tolerance(type));
  expect_gradients(p, type);
  return loss.item<float>();
}

TEST_P(Layers, LossHead) {
  at::Tensor labels = at::arange(3 * 17, at::kLong).remainder(41).view({3, 17}).clone();
  labels[0].narrow(0, 0, 9).fill_(-100);
  labels[2].narrow(0, 4, 13).fill_(-100);
  compare_heads(type(), 3, 17, 41, labels);
}

TEST_P(Layers, LossHeadInSeveralChunks) {
  // 2398 rows, chunks of at most 1024.
  const at::Tensor labels = at::arange(2 * 1200, at::kLong).remainder(50).view({2, 1200});
  compare_heads(type(), 2, 1200, 50, labels);
}

TEST_P(Layers, LossHeadWithoutLabels) {
  for (const std::int64_t length : {1, 5}) {
    Parameters p({random({8}, 1) + 1, random({11, 8}, 2)}, type());
    Input x(random({2, length, 8}, 3), type());
    // One position has nothing to predict; the others are told not to.
    const at::Tensor labels = at::full({2, length}, length == 1 ? 3 : -100, at::kLong);
    const at::Tensor loss =
        loss_head(x.value, labels, {NormKind::kRms, 1e-6, join(p, 0), {}}, join(p, 1));
    EXPECT_EQ(loss.item<float>(), 0.0F);
    torch::autograd::backward({loss}, {at::full({}, 1.0)});
    EXPECT_TRUE((x.value.grad() == 0).all().item<bool>());
    EXPECT_TRUE((p.gradients() == 0).all().item<bool>());
  }
}

TEST_P(Layers, LossHeadRefusesLabelsOutside) {
  Parameters p({random({8}, 1), random({11, 8}, 2)}, type());
  Input x(random({1, 3, 8}, 3), type());
  const at::Tensor labels = at::full({1, 3}, 11, at::kLong);
  EXPECT_THROW(loss_head(x.value, labels, {NormKind::kRms, 1e-6, join(p, 0), {}}, join(p, 1)),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Types, Layers, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return test::name_of(info.param); });

}  // namespace
}  // namespace tandem
