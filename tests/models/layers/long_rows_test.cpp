// Rows of several tiles: the layers against the same in double precision, and the same bits
// whatever a run keeps between forward and backward.
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "engine/types/recomputation.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/layers/dropout.hpp"
#include "models/layers/experts.hpp"
#include "models/layers/linear.hpp"
#include "models/layers/token_tiles.hpp"
#include "tests/models/layers/attention_reference.hpp"
#include "tests/models/layers/math_support.hpp"
#include "tests/support/counting_allocator.hpp"

namespace tandem {
namespace {

using test::backward_both;
using test::Input;
using test::Parameters;
using test::random;
using test::relative_error;
using test::rms;

constexpr std::int64_t kTokens = 2 * kTileTokens + 77;
constexpr std::int64_t kWidth = 12, kInner = 20;

class LongRows : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType type() const { return GetParam(); }
  /// The relative error allowed for sums over thousands of tokens that are rounded once.
  double limit() const { return type() == at::kFloat ? 1e-5 : type() == at::kHalf ? 4e-3 : 2e-2; }
  void expect_gradients(Parameters& p) const {
    for (std::size_t i = 0; i < p.size(); ++i) {
      EXPECT_LE(relative_error(p[i].grad, p.reference(i).grad()), limit()) << "parameter " << i;
    }
  }
};

JoinedWeights join(Parameters& p, std::size_t begin, std::size_t count = 1) {
  return JoinedWeights(p.pointers(begin, count));
}

TEST_P(LongRows, NormLinearAndLinear) {
  Parameters p(
      {random({kWidth}, 1) + 1, random({kInner, kWidth}, 2, 0.3), random({kInner, kWidth}, 3, 0.3),
       random({2 * kInner}, 4), random({kWidth, 2 * kInner}, 5, 0.2)},
      type());
  Input x(random({kTokens, kWidth}, 6), type());
  const auto [y, same] = norm_linear(x.value, {NormKind::kRms, 1e-6, join(p, 0), {}},
                                     {join(p, 1, 2), join(p, 3), false});
  const at::Tensor out = linear(y, same, {join(p, 4), {}, false});
  const at::Tensor w = at::cat({p.reference(1), p.reference(2)});
  const at::Tensor expected =
      x.reference +
      at::matmul(at::matmul(rms(x.reference, p.reference(0), 1e-6), w.t()) + p.reference(3),
                 p.reference(4).t());
  EXPECT_LE(relative_error(out, expected), limit());
  backward_both(out, expected, 7);
  EXPECT_LE(relative_error(x.value.grad(), x.reference.grad()), limit());
  expect_gradients(p);
}

/// Results of forward and backward of the MLP half, in or out of a recomputation.
struct Left {
  at::Tensor y, dx, gradients;
};

TEST_P(LongRows, AnMlpHasTheSameBitsWhenItIsComputedAgain) {
  const auto run = [&](bool again, MlpSum sum) {
    Parameters p({random({kWidth}, 1) + 1, random({2 * kInner, kWidth}, 2, 0.3),
                  random({kWidth, kInner}, 3, 0.3)},
                 type());
    Input x(random({kTokens, kWidth}, 4), type());
    const RecomputationGuard guard(again);
    const auto [y, same] = mlp(x.value,
                               {{NormKind::kRms, 1e-6, join(p, 0), {}},
                                {join(p, 1), {}, false},
                                Activation::kSwiGlu,
                                {join(p, 2), {}, false}},
                               sum);
    const at::Tensor got = same.defined() ? same + y : y;
    const at::Tensor wide = at::matmul(rms(x.reference, p.reference(0), 1e-6), p.reference(1).t());
    const at::Tensor reference = x.reference + at::matmul(at::silu(wide.narrow(1, 0, kInner)) *
                                                              wide.narrow(1, kInner, kInner),
                                                          p.reference(2).t());
    if (!again) {
      EXPECT_LE(relative_error(got, reference), limit());
    }
    backward_both(got, reference, 5);
    EXPECT_LE(relative_error(x.value.grad(), x.reference.grad()), limit());
    expect_gradients(p);
    return Left{got.detach(), x.value.grad(), p.gradients()};
  };
  for (const MlpSum sum : {MlpSum::kAdded, MlpSum::kGiven}) {
    const Left kept = run(false, sum);
    const Left again = run(true, sum);
    EXPECT_TRUE(at::equal(kept.dx, again.dx));
    EXPECT_TRUE(at::equal(kept.gradients, again.gradients));
    EXPECT_TRUE(sum == MlpSum::kAdded || at::equal(kept.y, again.y));
  }
}

TEST_P(LongRows, ExpertsHaveTheSameBitsWhenTheyAreComputedAgain) {
  const ExpertShape shape{.count = 3, .per_token = 2, .width = kInner};
  const at::Tensor all = random({kTokens, kWidth}, 4).to(type());
  const at::Tensor gradient = random({kTokens, kWidth}, 5).to(type());
  const auto run = [&](bool again, std::int64_t begin, std::int64_t count) {
    std::vector<at::Tensor> initial = {random({kWidth}, 1) + 1, random({3, kWidth}, 2)};
    for (std::uint64_t e = 0; e < 3; ++e) {
      initial.push_back(random({kInner, kWidth}, 10 + e, 0.3));
      initial.push_back(random({kInner, kWidth}, 20 + e, 0.3));
      initial.push_back(random({kWidth, kInner}, 30 + e, 0.3));
    }
    Parameters p(initial, type());
    const at::Tensor x = all.narrow(0, begin, count).clone().requires_grad_(true);
    const RecomputationGuard guard(again);
    const at::Tensor y = expert_mixture(x, {NormKind::kRms, 1e-6, join(p, 0), {}},
                                        {join(p, 1), {}, false}, p.pointers(2, 9), shape);
    torch::autograd::backward({y}, {gradient.narrow(0, begin, count).clone()});
    return Left{y.detach(), x.grad(), p.gradients()};
  };
  const Left kept = run(false, 0, kTokens);
  const Left again = run(true, 0, kTokens);
  EXPECT_TRUE(at::equal(kept.dx, again.dx));
  EXPECT_TRUE(at::equal(kept.gradients, again.gradients));
  at::Tensor sum = at::zeros(kept.gradients.sizes(), at::kDouble);
  for_token_tiles(kTokens, [&](std::int64_t begin, std::int64_t count) {
    const Left alone = run(false, begin, count);
    EXPECT_TRUE(at::equal(alone.y, kept.y.narrow(0, begin, count))) << begin;
    EXPECT_TRUE(at::equal(alone.dx, kept.dx.narrow(0, begin, count))) << begin;
    sum = sum + alone.gradients.to(at::kDouble);
  });
  EXPECT_LE(relative_error(kept.gradients, sum), limit());
}

TEST_P(LongRows, BitsDoNotDependOnThreads) {
  const int threads = at::get_num_threads();
  std::vector<Left> left;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    Parameters p({random({kWidth}, 1) + 1, random({2 * kInner, kWidth}, 2, 0.3),
                  random({kWidth, kInner}, 3, 0.3)},
                 type());
    const at::Tensor x = random({kTokens, kWidth}, 4).to(type()).requires_grad_(true);
    const auto [y, same] = mlp(x,
                               {{NormKind::kRms, 1e-6, join(p, 0), {}},
                                {join(p, 1), {}, false},
                                Activation::kSwiGlu,
                                {join(p, 2), {}, false}},
                               MlpSum::kAdded);
    torch::autograd::backward({y}, {random({kTokens, kWidth}, 5).to(type())});
    left.push_back({y.detach(), x.grad(), p.gradients()});
    EXPECT_TRUE(at::equal(left.front().y, left.back().y)) << count;
    EXPECT_TRUE(at::equal(left.front().dx, left.back().dx)) << count;
    EXPECT_TRUE(at::equal(left.front().gradients, left.back().gradients)) << count;
  }
  at::set_num_threads(threads);
}

TEST(TokenTiles, ATilesMaskIsThatOfItsRows) {
  DropMask mask = drop_mask(0.3, 42, 5, 3, DropPlace::kUpAdapters);
  // The mask covers all rows, or the second half of each of two rows of 5000 tokens that ranks
  // share.
  for (const DropRows& rows : {DropRows(), DropRows{.run = 2500, .stride = 5000, .first = 2500}}) {
    mask.rows = rows;
    const at::Tensor all = dropped(at::ones({5000, 7}), {}, mask);
    for (const std::int64_t row : {0, 1, 2048, 4096}) {
      const at::Tensor rest = dropped(at::ones({5000 - row, 7}), {}, from_row(mask, row));
      EXPECT_TRUE(at::equal(rest, all.narrow(0, row, 5000 - row))) << row;
      EXPECT_TRUE(at::equal(aten::dropped(at::ones({5000 - row, 7}), from_row(mask, row)), rest));
    }
  }
}

// By plain operations long rows of documents have no mask of T x T elements.
TEST(LongPackedRows, AttendDocumentByDocument) {
  constexpr std::int64_t kRows = 2;
  constexpr std::int64_t kLength = 4500;
  AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 8};
  std::vector<at::Tensor> rows;
  for (const std::int64_t first : {1000, 4499}) {
    rows.push_back(at::cat({at::arange(first), at::arange(kLength - first)}));
  }
  const at::Tensor positions = at::stack(rows);
  const at::Tensor initial = random({kRows * kLength, 4 * 8}, 1).to(at::kFloat);
  const at::Tensor gradient = random({kRows * kLength, 2 * 8}, 2).to(at::kFloat);
  const auto outcome = [&](auto attend) {
    const at::Tensor qkv = initial.clone().requires_grad_(true);
    const at::Tensor context = attend(qkv);
    torch::autograd::backward({context}, {gradient});
    return at::cat({context.detach(), qkv.grad()}, 1);
  };
  const at::Tensor fused = outcome([&](const at::Tensor& qkv) {
    return causal_attention(qkv, kLength, shape, {}, {}, {}, positions);
  });
  const at::Tensor plain = outcome([&](const at::Tensor& qkv) {
    return aten::attention(qkv, kLength, shape, {}, {}, {}, positions);
  });
  EXPECT_LE(relative_error(plain, fused), 1e-5);
  const BatchShape batch{.rows = kRows, .length = kLength, .packed = true};
  EXPECT_EQ(aten::document_mask_bytes(batch), 0);
}

// A document's own slice of q, k and v would have a gradient of all rows, which is filled with 0.
TEST(LongPackedRows, ADocumentCostsNoGradientOfAllRows) {
  constexpr std::int64_t kLength = 4500, kDocument = 225, kWidth = 4 * 32;
  const AttentionShape shape{.heads = 4, .kv_heads = 4, .head_dim = 32};
  const at::Tensor positions = at::arange(kLength).remainder(kDocument).view({1, kLength});
  const at::Tensor qkv = at::randn({kLength, 3 * kWidth}).requires_grad_(true);
  test::CountingAllocator counting;
  const at::Tensor context = aten::attention(qkv, kLength, shape, {}, {}, {}, positions);
  const at::Tensor gradient = at::ones_like(context);
  {
    const test::CountedTensors counted(counting);
    torch::autograd::backward({context}, {gradient});
    qkv.mutable_grad().reset();
  }
  // Gradients of the documents, of them together, of each of q, k and v: some times all rows.
  EXPECT_LE(counting.asked, 40 * kLength * kWidth * 4);
}

INSTANTIATE_TEST_SUITE_P(Types, LongRows, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return test::name_of(info.param); });

}  // namespace
}  // namespace tandem
