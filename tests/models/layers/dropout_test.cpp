// Dropout: its masks' statistics, the layers against the composition of ATen's operators with the
// same mask, the two ways beside each other, and whole models, whose losses must follow from seed
// and micro-batch alone.
#include "models/layers/dropout.hpp"

#include <cmath>
#include <filesystem>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "models/causal_lm.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/layers/attention.hpp"
#include "models/pretrained.hpp"
#include "models/transformer/transformer_layer.hpp"
#include "tests/models/layers/attention_reference.hpp"
#include "tests/models/layers/harness.hpp"
#include "tests/models/layers/math_support.hpp"

namespace tandem {
namespace {

using test::attention_by_the_book;
using test::AttentionCase;
using test::backward_both;
using test::Input;
using test::random;
using test::relative_error;
using test::tolerance;

DropMask mask_of(double rate, std::int64_t number = 5, DropPlace place = DropPlace::kAttention) {
  return drop_mask(rate, 42, number, 3, place);
}

/// Returns our kernels' dropout of ones: 0 or the scale.
at::Tensor factors(const DropMask& mask, std::int64_t rows, std::int64_t width) {
  return dropped(at::ones({rows, width}), {}, mask);
}

/// Returns 1 where an element stays and -1 where it is dropped, less the mean.
at::Tensor signs(const DropMask& mask, std::int64_t rows, std::int64_t width) {
  const at::Tensor stays = factors(mask, rows, width).gt(0).to(at::kDouble);
  return stays - stays.mean();
}

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  for (const double rate : {0.01, 0.1, 0.5, 0.9}) {
    const at::Tensor f = factors(mask_of(rate), 1000, 999).to(at::kDouble);
    const double count = static_cast<double>(f.numel());
    const double share = f.eq(0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(share, rate, 4 * std::sqrt(rate * (1 - rate) / count));
    EXPECT_NEAR(f.mean().item<double>(), 1, 4 * std::sqrt(rate / (1 - rate) / count));
    EXPECT_NEAR(f.var().item<double>(), rate / (1 - rate), 0.02 * rate / (1 - rate));
    EXPECT_TRUE(
        f.eq(0).logical_or(f.eq(static_cast<double>(mask_of(rate).scale))).all().item<bool>());
  }
}

/// Rows, columns, and what is kept at another place, micro-batch, layer or seed, are all
/// independent.
TEST(Dropout, HasNoPattern) {
  constexpr std::int64_t kRows = 600;
  constexpr std::int64_t kWidth = 700;
  constexpr double kRate = 0.3;
  const at::Tensor s = signs(mask_of(kRate), kRows, kWidth);
  const double variance = s.pow(2).mean().item<double>();
  const auto expect_independent = [&](const at::Tensor& product, double scale,
                                      const std::string& of) {
    EXPECT_NEAR(product.mean().item<double>() / scale, 0,
                4.5 / std::sqrt(static_cast<double>(product.numel())))
        << of;
  };
  for (const std::int64_t apart : {1, 2, 3, 16, 64, 256}) {
    expect_independent(s.narrow(1, 0, kWidth - apart) * s.narrow(1, apart, kWidth - apart),
                       variance, fmt::format("columns {} apart", apart));
    expect_independent(s.narrow(0, 0, kRows - apart) * s.narrow(0, apart, kRows - apart), variance,
                       fmt::format("rows {} apart", apart));
    const auto corner = [&](std::int64_t r, std::int64_t c) {
      return s.narrow(0, r, kRows - apart).narrow(1, c, kWidth - apart);
    };
    expect_independent(corner(0, 0) * corner(0, apart) * corner(apart, 0) * corner(apart, apart),
                       variance * variance, fmt::format("rectangles of {}", apart));
  }
  const DropMask others[] = {mask_of(kRate, 6), mask_of(kRate, 5, DropPlace::kMlpOut),
                             drop_mask(kRate, 42, 5, 4, DropPlace::kAttention),
                             drop_mask(kRate, 43, 5, 3, DropPlace::kAttention)};
  for (const DropMask& other : others) {
    expect_independent(s * signs(other, kRows, kWidth), variance, "another mask");
  }
}

TEST(Dropout, IsOffOutsideOfTrainingAndAtRateZero) {
  EXPECT_TRUE(mask_of(0.5, -1).empty());
  EXPECT_TRUE(mask_of(0).empty());
  EXPECT_FALSE(mask_of(1e-12).empty());
  const at::Tensor x = at::randn({4, 5});
  EXPECT_TRUE(at::equal(dropped(x, {}, {}), x));
  EXPECT_TRUE(at::equal(aten::dropped(x, {}), x));
}

TEST(Dropout, TheTwoWaysDrawTheSameMask) {
  for (const std::int64_t width : {1, 7, 16, 61, 128}) {
    const DropMask mask = mask_of(0.4);
    const at::Tensor x = at::randn({33, width});
    EXPECT_TRUE(at::equal(dropped(x.clone(), {}, mask), aten::dropped(x, mask))) << width;
  }
  // From another row and column on, in several pieces, and at numbers beyond 32 bits' products.
  const DropMask mask = mask_of(0.4);
  const at::Tensor whole = aten::dropped(at::ones({50, 300}), mask);
  const at::Tensor part = aten::dropped(at::ones({20, 100}), mask, at::arange(30, 50), 200);
  EXPECT_TRUE(at::equal(part, whole.narrow(0, 30, 20).narrow(1, 200, 100)));
  const at::Tensor wide = at::ones({3, 5 << 20});
  EXPECT_TRUE(at::equal(dropped(wide.clone(), {}, mask), aten::dropped(wide, mask)));
}

class DropoutLayers : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType type() const { return GetParam(); }
};

TEST_P(DropoutLayers, OfASum) {
  Input y(random({37, 61}, 1), type());
  Input residual(random({37, 61}, 2), type());
  const DropMask mask = mask_of(0.25);
  const at::Tensor expected =
      residual.reference + y.reference * factors(mask, 37, 61).to(at::kDouble);
  const at::Tensor got = dropped(y.value.clone(), residual.value, mask);
  EXPECT_LE(relative_error(got, expected), tolerance(type()));
  const at::Tensor other = residual.value.detach() + aten::dropped(y.value.detach(), mask);
  EXPECT_LE(relative_error(other, expected), tolerance(type()));
  backward_both(got, expected, 3);
  EXPECT_LE(relative_error(y.value.grad(), y.reference.grad()), tolerance(type()));
  EXPECT_LE(relative_error(residual.value.grad(), residual.reference.grad()), tolerance(type()));
}

constexpr AttentionCase kAttentionCases[] = {{2, 7, 3, 3, 16, false, false},
                                             {2, 65, 4, 2, 32, false, false},
                                             {1, 200, 4, 2, 16, false, false, 64},
                                             {2, 130, 6, 3, 16, false, false, 33, true},
                                             {1, 66, 4, 1, 8, false, false, 0, true}};

TEST_P(DropoutLayers, OfAttention) {
  for (const AttentionCase& c : kAttentionCases) {
    SCOPED_TRACE(testing::Message() << "length " << c.length << " window " << c.window);
    const DropMask mask = mask_of(0.2);
    const AttentionShape shape{.heads = c.heads,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim,
                               .window = c.window,
                               .sinks = c.sinks};
    for (const bool by_aten : {false, true}) {
      SCOPED_TRACE(by_aten ? "plain" : "fused");
      Input qkv(random({c.batch * c.length, (c.heads + 2 * c.kv_heads) * c.head_dim}, 1), type());
      test::Parameters sinks({random({c.heads}, 7)}, type());
      AttentionWeights weights;
      if (c.sinks) {
        weights.sinks = JoinedWeights(sinks.pointers(0, 1));
      }
      const at::Tensor expected = attention_by_the_book(
          c, qkv.reference,
          {.sinks = sinks.reference(0),
           .factors = factors(mask, c.batch * c.heads * c.length, c.length).to(at::kDouble)});
      const at::Tensor got = by_aten
                                 ? aten::attention(qkv.value, c.length, shape, weights, {}, mask)
                                 : causal_attention(qkv.value, c.length, shape, weights, {}, mask);
      EXPECT_LE(relative_error(got, expected), type() == at::kFloat ? 5e-6 : 3e-2);
      backward_both(got, expected, 4);
      EXPECT_LE(relative_error(qkv.value.grad(), qkv.reference.grad()),
                type() == at::kFloat ? 2e-5 : 4e-2);
      if (c.sinks) {
        EXPECT_LE(relative_error(test::gradient_of(sinks[0]), sinks.reference(0).grad()),
                  type() == at::kFloat ? 2e-5 : 5e-2);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, DropoutLayers,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return test::name_of(info.param); });

/// A small model of each family that has dropout in more places than attention, and one with
/// windows and sinks.
std::string config_of(std::string_view family) {
  const std::string sizes =
      R"("vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu",
         "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 1)";
  if (family == "gpt2") {
    return R"({"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 32, "n_head": 4,
               "n_layer": 2, "n_positions": 64, "vocab_size": 67, "initializer_range": 0.2,
               "attn_pdrop": 0.2, "embd_pdrop": 0.1, "resid_pdrop": 0.3})";
  }
  const std::string more =
      family == "seed_oss" ? R"("attention_dropout": 0.2, "residual_dropout": 0.3)"
      : family == "phi3"
          ? R"("attention_dropout": 0.2, "resid_pdrop": 0.3, "embd_pdrop": 0.4, "sliding_window": 7)"
          : R"("attention_dropout": 0.2, "num_local_experts": 4, "num_experts_per_tok": 2,
               "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "sliding_window": 7)";
  return fmt::format(R"({{"model_type": "{}", {}, {}}})", family, sizes, more);
}

class DropoutModels : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { aten::take_always(false); }

  test::MathHarness model(std::uint64_t seed = 7) const {
    const HfConfig config = parse_hf_config(config_of(GetParam()), "config.json");
    return {make_causal_lm(config, {}, seed), at::kFloat, random_weights(config, 1)};
  }
  static Batch batch(std::int64_t number) {
    const at::Tensor tokens = at::arange(3 * 21, at::kLong).mul(7).remainder(67).view({3, 21});
    return {.inputs = tokens, .labels = tokens, .number = number};
  }
};

TEST_P(DropoutModels, LossFollowsFromSeedAndMicroBatch) {
  test::MathHarness m = model();
  const float loss = m.step(batch(11));
  const std::vector<at::Tensor> gradients = {m.gradients()[0].clone(), m.gradients()[1].clone()};
  EXPECT_NE(m.step(batch(12)), loss);
  EXPECT_NE(m.step(batch(-1)), loss);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_EQ(m.step(batch(11)), loss);
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(m.gradients()[i], gradients[i]));
  }
  EXPECT_EQ(model().step(batch(11)), loss);
  EXPECT_NE(model(8).step(batch(11)), loss);
}

TEST_P(DropoutModels, IsOffForLogitsAndOutsideOfTraining) {
  HfConfig config = parse_hf_config(config_of(GetParam()), "config.json");
  EXPECT_TRUE(config.dropout.any());
  config.dropout = {};
  test::MathHarness without(make_causal_lm(config), at::kFloat, random_weights(config, 1));
  test::MathHarness with = model();
  EXPECT_EQ(with.step(batch(-1)), without.step(batch(5)));
  EXPECT_TRUE(at::equal(with.logits(batch(-1).inputs), without.logits(batch(-1).inputs)));
}

TEST_P(DropoutModels, BothWaysAgree) {
  test::MathHarness fused = model();
  test::MathHarness aten_one = model();
  const float loss = fused.step(batch(3));
  aten::take_always(true);
  EXPECT_NEAR(aten_one.step(batch(3)), loss, 1e-5);
  for (std::size_t u = 0; u < fused.gradients().size(); ++u) {
    EXPECT_LE(relative_error(aten_one.gradients()[u], fused.gradients()[u].to(at::kDouble)), 2e-5)
        << u;
  }
}

/// Along the gradient the loss rises as fast as the gradient says: both ways draw the same mask
/// forward and backward.
TEST_P(DropoutModels, GradientIsThatOfTheLoss) {
  for (const bool by_aten : {false, true}) {
    aten::take_always(by_aten);
    test::MathHarness m = model();
    m.step(batch(3));
    std::vector<at::Tensor> gradients;
    double squares = 0;
    for (const at::Tensor& gradient : m.gradients()) {
      gradients.push_back(gradient.clone());
      squares += gradient.to(at::kDouble).pow(2).sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    const double step = 2e-3;
    const auto loss_at = [&](double distance) {
      for (std::size_t u = 0; u < gradients.size(); ++u) {
        m.values()[u].add_(gradients[u], distance / norm);
      }
      const double loss = m.step(batch(3));
      for (std::size_t u = 0; u < gradients.size(); ++u) {
        m.values()[u].sub_(gradients[u], distance / norm);
      }
      return loss;
    };
    EXPECT_NEAR((loss_at(step) - loss_at(-step)) / (2 * step), norm, 5e-3 * norm);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DropoutModels,
                         testing::Values("seed_oss", "gpt2", "phi3", "gpt_oss"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tandem
