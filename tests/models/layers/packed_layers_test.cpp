// Rows of several documents: each is computed as if it were alone, to the bit by our kernels, and
// a mistake at a document's boundary is far above the limits that hold elsewhere.
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "models/layers/aten/layers.hpp"
#include "models/layers/attention.hpp"
#include "models/layers/dropout.hpp"
#include "models/layers/embedding.hpp"
#include "tests/models/layers/attention_reference.hpp"
#include "tests/models/layers/math_support.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::attention_by_the_book;
using test::AttentionCase;
using test::Input;
using test::Parameters;
using test::random;
using test::relative_error;

using Lengths = std::vector<std::vector<std::int64_t>>;  // [row][document]

/// [B, T].
at::Tensor positions_of(const Lengths& rows) {
  std::vector<at::Tensor> all;
  for (const auto& row : rows) {
    std::vector<at::Tensor> documents;
    documents.reserve(row.size());
    for (const std::int64_t length : row) {
      documents.push_back(at::arange(length));
    }
    all.push_back(at::cat(documents));
  }
  return at::stack(all);
}

// A document of one token, of a block of queries, of one token more, of several blocks.
const Lengths kRows = {{70, 1, 64, 65}, {130, 70}};

constexpr AttentionCase kCases[] = {{2, 200, 5, 5, 16, false, false},
                                    {2, 200, 6, 2, 16, true, true},
                                    {2, 200, 4, 2, 16, true, true, 7},
                                    {2, 200, 4, 1, 32, false, true, 66, true},
                                    {2, 200, 4, 2, 8, false, true, 0, true}};

/// Weights and the shape of a case, and its rows of q, k and v.
struct Attention {
  Attention(const AttentionCase& c, at::ScalarType type)
      : of(c),
        qkv(random({c.batch * c.length, (c.heads + 2 * c.kv_heads) * c.head_dim}, 1), type),
        weights({random({c.head_dim}, 2, 0.2) + 1, random({c.head_dim}, 3, 0.2) + 1,
                 random({c.heads}, 7)},
                type),
        shape{
            .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim, .window = c.window} {
    if (c.rotary) {
      shape.rotary = std::make_shared<RotaryTable>(
          RotaryScaling{.kind = RotaryKind::kDefault, .theta = 1e4, .dim = c.head_dim});
    }
  }

  JoinedWeights weight(bool has, std::size_t i) {
    return has ? JoinedWeights(weights.pointers(i, 1)) : JoinedWeights();
  }

  at::Tensor fused(const at::Tensor& rows, std::int64_t length, const at::Tensor& positions,
                   const DropMask& drop = {}) {
    return causal_attention(rows, length, shape,
                            {weight(of.norms, 0), weight(of.norms, 1), weight(of.sinks, 2)}, {},
                            drop, positions);
  }
  at::Tensor plain(const at::Tensor& rows, std::int64_t length, const at::Tensor& positions,
                   const DropMask& drop = {}) {
    return aten::attention(rows, length, shape,
                           {weight(of.norms, 0), weight(of.norms, 1), weight(of.sinks, 2)}, {},
                           drop, positions);
  }
  /// Each document by itself, in double; factors [B, heads, T, T] of the probabilities or
  /// undefined.
  at::Tensor by_the_book(const Lengths& rows, const at::Tensor& factors = {}) {
    std::vector<at::Tensor> all;
    std::int64_t at = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      std::int64_t offset = 0;
      for (const std::int64_t length : rows[row]) {
        AttentionCase alone = of;
        alone.batch = 1;
        alone.length = length;
        const at::Tensor part = factors.defined() ? factors[static_cast<std::int64_t>(row)]
                                                        .narrow(1, offset, length)
                                                        .narrow(2, offset, length)
                                                  : at::Tensor();
        all.push_back(attention_by_the_book(
            alone, qkv.reference.narrow(0, at + offset, length),
            {weights.reference(0), weights.reference(1), weights.reference(2), part}));
        offset += length;
      }
      at += offset;
    }
    return at::cat(all);
  }

  AttentionCase of;
  Input qkv;
  Parameters weights;
  AttentionShape shape;
};

class PackedLayers : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType type() const { return GetParam(); }
  double limit() const { return type() == at::kFloat ? 5e-6 : 3e-2; }
};

TEST_P(PackedLayers, ADocumentsAttentionHasTheBitsThatItHasAlone) {
  for (const AttentionCase& c : kCases) {
    SCOPED_TRACE(testing::Message() << "window " << c.window << " head_dim " << c.head_dim);
    Attention attention(c, type());
    const at::Tensor gradient = random({c.batch * c.length, c.heads * c.head_dim}, 4).to(type());
    const at::Tensor pack = attention.fused(attention.qkv.value, c.length, positions_of(kRows));
    torch::autograd::backward({pack}, {gradient});
    std::vector<at::Tensor> sums(3);
    std::int64_t at = 0;
    for (const auto& row : kRows) {
      for (const std::int64_t length : row) {
        Attention alone(c, type());
        const at::Tensor rows =
            alone.qkv.value.detach().narrow(0, at, length).clone().requires_grad_(true);
        const at::Tensor context = alone.fused(rows, length, {});
        torch::autograd::backward({context}, {gradient.narrow(0, at, length).clone()});
        EXPECT_TRUE(at::equal(pack.narrow(0, at, length), context)) << "document at " << at;
        EXPECT_TRUE(at::equal(attention.qkv.value.grad().narrow(0, at, length), rows.grad()))
            << "gradients of the document at " << at;
        for (std::size_t i = 0; i < 3; ++i) {
          const at::Tensor share = alone.weights[i].grad.to(at::kDouble);
          sums[i] = sums[i].defined() ? sums[i] + share : share;
        }
        at += length;
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      if (i < 2 ? c.norms : c.sinks) {
        EXPECT_LE(relative_error(attention.weights[i].grad, sums[i]),
                  type() == at::kFloat ? 1e-6 : test::tolerance(type()))
            << i;
      }
    }
  }
}

TEST_P(PackedLayers, BothWaysAreTheBookForEachDocument) {
  for (const AttentionCase& c : kCases) {
    for (const bool by_aten : {false, true}) {
      SCOPED_TRACE(testing::Message() << "window " << c.window << " head_dim " << c.head_dim
                                      << (by_aten ? " plain" : " fused"));
      Attention attention(c, type());
      const at::Tensor expected = attention.by_the_book(kRows);
      const at::Tensor positions = positions_of(kRows);
      const at::Tensor got = by_aten ? attention.plain(attention.qkv.value, c.length, positions)
                                     : attention.fused(attention.qkv.value, c.length, positions);
      EXPECT_LE(relative_error(got, expected), limit());
      test::backward_both(got, expected, 4);
      EXPECT_LE(relative_error(attention.qkv.value.grad(), attention.qkv.reference.grad()),
                type() == at::kFloat ? 2e-5 : 4e-2);
      for (std::size_t i = 0; i < 3; ++i) {
        if (i < 2 ? c.norms : c.sinks) {
          EXPECT_LE(relative_error(test::gradient_of(attention.weights[i]),
                                   attention.weights.reference(i).grad()),
                    type() == at::kFloat ? 2e-5 : 5e-2)
              << i;
        }
      }
    }
  }
}

TEST_P(PackedLayers, BoundariesElsewhereAreFound) {
  const Lengths mistakes[] = {{{71, 64, 65}, {130, 70}},         // one is joined to another
                              {{69, 2, 64, 65}, {130, 70}},      // a boundary too early
                              {{70, 2, 63, 65}, {130, 70}},      // too late
                              {{70, 1, 64, 65}, {200}},          // none
                              {{70, 1, 64, 65}, {65, 65, 70}}};  // one too many
  for (const AttentionCase& c : kCases) {
    for (const bool by_aten : {false, true}) {
      Attention attention(c, type());
      const at::Tensor expected = attention.by_the_book(kRows);
      for (const Lengths& rows : mistakes) {
        const at::Tensor positions = positions_of(rows);
        const at::Tensor got = by_aten ? attention.plain(attention.qkv.value, c.length, positions)
                                       : attention.fused(attention.qkv.value, c.length, positions);
        EXPECT_GE(relative_error(got, expected), 4 * limit())
            << "window " << c.window << " head_dim " << c.head_dim;
      }
    }
  }
}

TEST_P(PackedLayers, DropoutDrawsTheMaskOfTheRow) {
  const DropMask mask = drop_mask(0.2, 42, 5, 3, DropPlace::kAttention);
  for (const AttentionCase& c : kCases) {
    for (const bool by_aten : {false, true}) {
      SCOPED_TRACE(testing::Message() << "window " << c.window << (by_aten ? " plain" : " fused"));
      Attention attention(c, type());
      const at::Tensor factors =
          aten::dropped(at::ones({c.batch * c.heads * c.length, c.length}), mask)
              .to(at::kDouble)
              .view({c.batch, c.heads, c.length, c.length});
      const at::Tensor expected = attention.by_the_book(kRows, factors);
      const at::Tensor positions = positions_of(kRows);
      const at::Tensor got = by_aten
                                 ? attention.plain(attention.qkv.value, c.length, positions, mask)
                                 : attention.fused(attention.qkv.value, c.length, positions, mask);
      EXPECT_LE(relative_error(got, expected), limit());
      test::backward_both(got, expected, 4);
      EXPECT_LE(relative_error(attention.qkv.value.grad(), attention.qkv.reference.grad()),
                type() == at::kFloat ? 2e-5 : 4e-2);
    }
  }
}

TEST_P(PackedLayers, LearntPositionsBeginAgainWithEachDocument) {
  const Lengths rows = {{3, 1, 4}, {8}};
  const at::Tensor tokens = at::arange(16).remainder(11).view({2, 8});
  const at::Tensor positions = positions_of(rows);
  for (const bool by_aten : {false, true}) {
    SCOPED_TRACE(by_aten ? "plain" : "fused");
    Parameters p({random({13, 9}, 1), random({8, 9}, 2)}, type());
    const at::Tensor got = by_aten
                               ? aten::embedding(tokens, p[0], &p[1], std::nullopt, 0, 1, positions)
                               : embedding(tokens, p[0], &p[1], std::nullopt, 0, 1, positions);
    const at::Tensor expected =
        at::embedding(p.reference(0), tokens) + at::embedding(p.reference(1), positions);
    EXPECT_LE(relative_error(got, expected), test::tolerance(type()));
    test::backward_both(got, expected, 3);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_LE(relative_error(by_aten ? p[i].value.grad() : p[i].grad, p.reference(i).grad()),
                test::tolerance(type()))
          << i;
    }
    const at::Tensor going_on = by_aten ? aten::embedding(tokens, p[0], &p[1], std::nullopt)
                                        : embedding(tokens, p[0], &p[1], std::nullopt);
    EXPECT_GE(relative_error(going_on, expected), 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PackedLayers, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(Documents, ARowMayBeLongerThanThePositionsADocumentNot) {
  Parameters p({random({13, 4}, 1), random({5, 4}, 2)}, at::kFloat);
  const at::Tensor tokens = at::zeros({1, 9}, at::kLong);
  (void)embedding(tokens, p[0], &p[1], std::nullopt, 0, 1, positions_of({{5, 4}}));
  test::expect_error(
      [&] { (void)embedding(tokens, p[0], &p[1], std::nullopt, 0, 1, positions_of({{6, 3}})); },
      {"a sequence of 6 tokens, the model has 5 positions"});
}

TEST(Documents, PositionsThatDoNotCountAreRefused) {
  EXPECT_EQ(document_begins(positions_of({{2, 1}, {3}})), (std::vector<std::int64_t>{0, 2, 3, 6}));
  EXPECT_TRUE(document_begins({}).empty());
  test::expect_error([] { (void)document_begins(at::tensor({0, 1, 3}, at::kLong).view({1, 3})); },
                     {"token 2 of row 0 has position 3, and it must be 0 or 2"});
  test::expect_error(
      [] { (void)document_begins(at::tensor({0, 1, 2, 3}, at::kLong).view({2, 2})); },
      {"token 0 of row 1 has position 2, and it must be 0;"});
}

TEST(Documents, TheLongestDocumentDecidesWhichFrequenciesAreTaken) {
  const RotaryScaling scaling{.kind = RotaryKind::kLongRope,
                              .theta = 1e4,
                              .dim = 4,
                              .original_positions = 6,
                              .short_factors = {1, 1},
                              .long_factors = {2, 3}};
  RotaryTable table(scaling);
  for (const std::int64_t longest : {6, 7}) {
    const auto [cosine, sine] = table.tensors_at(positions_of({{longest, 12 - longest}}));
    const auto [expected_cosine, expected_sine] = table.tensors(longest, at::kCPU);
    EXPECT_TRUE(at::equal(cosine[0].narrow(0, 0, longest), expected_cosine)) << longest;
    EXPECT_TRUE(at::equal(sine[0].narrow(0, 0, longest), expected_sine)) << longest;
    EXPECT_TRUE(at::equal(sine[0].narrow(0, longest, 12 - longest),
                          expected_sine.narrow(0, 0, 12 - longest)));
  }
}

}  // namespace
}  // namespace tandem
