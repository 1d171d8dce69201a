// The routers' own loss against its formula in double precision: over layers, and without what is
// padding.
#include "models/transformer/router_balance.hpp"

#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/models/layers/math_support.hpp"

namespace tandem {
namespace {

using test::Input;
using test::random;
using test::relative_error;

constexpr std::int64_t kExperts = 5;
constexpr std::int64_t kPerToken = 2;
constexpr double kCoefficient = 0.3;

/// By the book. tokens: 1 or 0 for each row of the logits.
at::Tensor balance_of(const std::vector<at::Tensor>& logits, const at::Tensor& tokens) {
  at::Tensor choices = at::zeros({kExperts}, at::kDouble);
  at::Tensor probabilities = choices;
  for (const at::Tensor& layer : logits) {
    const at::Tensor chosen = std::get<1>(at::topk(layer, kPerToken, 1));
    choices = choices + (at::one_hot(chosen, kExperts).sum(1) * tokens.unsqueeze(1)).sum(0);
    probabilities = probabilities + (at::softmax(layer, 1) * tokens.unsqueeze(1)).sum(0);
  }
  const at::Tensor rows = tokens.sum() * static_cast<double>(logits.size());
  return kCoefficient * kExperts * (choices / rows * (probabilities / rows)).sum();
}

void compare(const Batch& batch, const at::Tensor& tokens, bool recomputed) {
  const std::int64_t rows = batch.labels.numel();
  RouterBalance balance(kCoefficient, kExperts, kPerToken, 3);  // the second layer is dense
  Input x(random({rows, 4}, 1), at::kFloat);
  Input first(random({rows, kExperts}, 2), at::kFloat);
  Input last(random({rows, kExperts}, 3), at::kFloat);
  const auto through = [&] {
    return balance.observe(2, last.value, batch, balance.observe(0, first.value, batch, x.value));
  };
  at::Tensor y = through();
  EXPECT_TRUE(at::equal(y, x.value));
  const at::Tensor loss = balance.added_to(y.sum());
  const at::Tensor expected =
      x.reference.sum() + balance_of({first.reference, last.reference}, tokens);
  EXPECT_LE(relative_error(loss, expected), 1e-6);
  if (recomputed) {
    y = through();  // as activation checkpointing does, before the layers' backward
    EXPECT_EQ(balance.added_to(y.sum()).item<float>(), loss.item<float>());
  }
  torch::autograd::backward({loss}, {at::full({}, 8.0)});
  torch::autograd::backward({expected}, {at::full({}, 8.0, at::kDouble)});
  EXPECT_LE(relative_error(first.value.grad(), first.reference.grad()), 1e-5);
  EXPECT_LE(relative_error(last.value.grad(), last.reference.grad()), 1e-5);
  EXPECT_LE(relative_error(x.value.grad(), x.reference.grad()), 1e-6);
}

TEST(RouterBalance, IsTheFormulaOverAllLayersWithoutPadding) {
  const at::Tensor labels = at::arange(3 * 7, at::kLong).view({3, 7}).clone();
  at::Tensor tokens = at::ones({3, 7}, at::kDouble);
  compare({.labels = labels}, tokens.view(-1), false);
  labels[0].narrow(0, 0, 3).fill_(-100);  // a prompt that is not learnt is no padding
  compare({.labels = labels}, tokens.view(-1), false);
  labels[1].narrow(0, 4, 3).fill_(-100);
  tokens[1].narrow(0, 4, 3).fill_(0);
  compare({.labels = labels}, tokens.view(-1), false);
  compare({.labels = labels}, tokens.view(-1), true);
}

// As Transformers counts them: a chat's end that is not learnt is no padding.
TEST(RouterBalance, PaddingIsWhatLiesBehindALengthWhereThatIsKnown) {
  const at::Tensor labels = at::arange(3 * 7, at::kLong).view({3, 7}).clone();
  at::Tensor tokens = at::ones({3, 7}, at::kDouble);
  labels[0].narrow(0, 2, 5).fill_(-100);  // 6 tokens
  tokens[0].narrow(0, 6, 1).fill_(0);
  labels[1].fill_(-100);  // 4 tokens, none learnt
  tokens[1].narrow(0, 4, 3).fill_(0);
  const at::Tensor lengths = at::tensor({6, 4, 7}, at::kLong);
  compare({.labels = labels, .lengths = lengths}, tokens.view(-1), false);
  compare({.labels = labels, .lengths = lengths}, tokens.view(-1), true);
  // In a packed row all tokens of its documents count.
  const at::Tensor positions = at::arange(7, at::kLong).expand({3, 7}).contiguous();
  compare({.labels = labels, .positions = positions, .lengths = lengths}, tokens.view(-1), false);
}

TEST(RouterBalance, PaddingOfAPackIsWhatLiesBehindADocumentsLastLabel) {
  const at::Tensor positions =
      at::tensor({0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0}, at::kLong).view({2, 7});
  const at::Tensor labels =
      at::tensor({-100, 4, -100, -100, -100, 5, -100, -100, -100, -100, 6, -100, -100, -100},
                 at::kLong)
          .view({2, 7});
  const at::Tensor tokens =
      at::tensor({1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0}, at::kLong).to(at::kDouble);
  compare({.labels = labels, .positions = positions}, tokens, false);
  compare({.labels = labels, .positions = positions}, tokens, true);
}

TEST(RouterBalance, EnginesOfOneProcessDoNotMeet) {
  RouterBalance balance(1, kExperts, kPerToken, 1);
  const Batch batch{.labels = at::zeros({1, 6}, at::kLong)};
  const at::Tensor x = at::zeros({1});
  const auto loss_of = [&](const at::Tensor& logits) {
    (void)balance.observe(0, logits, batch, x);
    return balance.added_to(at::zeros({})).item<float>();
  };
  const at::Tensor mine = random({6, kExperts}, 4).to(at::kFloat);
  const float before = loss_of(mine);
  (void)balance.observe(0, mine, batch, x);
  std::thread([&] { EXPECT_NE(loss_of(at::eye(6, kExperts) * 3), before); }).join();
  EXPECT_EQ(balance.added_to(at::zeros({})).item<float>(), before);
}

}  // namespace
}  // namespace tandem
