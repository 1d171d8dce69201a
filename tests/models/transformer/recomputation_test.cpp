// A layer of a device that is computed again for its backward: the gradients' bits are those of the
// first forward's, and the last matmul, whose result is not read, does not run.
#include "engine/types/recomputation.hpp"

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/layers/aten/layers.hpp"
#include "models/transformer/transformer_layer.hpp"
#include "tests/models/recorded_operations.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kHidden = 48;

struct Kind {
  std::string name;
  LayerShape shape;
  LayerNames names;
  int matmuls_less;
};

std::vector<Kind> kinds() {
  const LayerShape shape{.hidden = kHidden,
                         .intermediate = 64,
                         .norm = NormKind::kRms,
                         .attention = {.heads = 3, .kv_heads = 3, .head_dim = 16},
                         .activation = Activation::kSwiGlu};
  const LayerNames names{.attention_norm = {"a"},
                         .qkv = {"qkv"},
                         .attention_out = {"o"},
                         .mlp_norm = {"m"},
                         .up = {"gate", "up"},
                         .down = {"down"}};
  Kind dense{"dense", shape, names, 1};
  Kind dropped{"dropped", shape, names, 1};
  dropped.shape.dropout.rates.residual = 0.2;
  Kind biased{"biased", shape, names, 1};
  biased.names.down_bias = {"down bias"};
  Kind normed{"normed", shape, names, 0};  // the norm behind it keeps the matmul's result
  normed.names.attention_out_norm = {"on"};
  normed.names.down_norm = {"dn"};
  Kind experts{"experts", shape, names, 1};
  experts.shape.experts = {.count = 3, .per_token = 2, .width = 32};
  experts.names.up = experts.names.down = {};
  experts.names.router = {"r"};
  for (int i = 0; i < 3; ++i) {
    for (const char* matrix : {"gate", "up", "down"}) {
      experts.names.experts.push_back(std::to_string(i) + matrix);
    }
  }
  return {dense, dropped, biased, normed, experts};
}

struct Pass {
  std::vector<at::Tensor> gradients;  // of the input, then of the weights
  int matmuls = 0;                    // of the forward
};

class LayerOfADevice {
 public:
  explicit LayerOfADevice(const Kind& kind)
      : segment_(layer_segment(shape_of_layer(kind.shape, kind.names), kind.names)) {
    at::manual_seed(1);
    const UnitSpec unit = block_units("layer", shape_of_layer(kind.shape, kind.names), kind.names,
                                      LeafModule::kBlock)[0];
    const at::Tensor values = at::randn({unit.numel()}).mul_(0.1);  // a unit's lie side by side
    gradients_ = at::zeros_like(values);
    std::int64_t begin = 0;
    for (const ParameterSpec& p : unit.parameters) {
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, begin, p.numel()).view(p.shape).detach();
      };
      weights_.push_back({.value = part(values).requires_grad_(true), .grad = part(gradients_)});
      begin += p.numel();
    }
    input_ = at::randn({2, 24, kHidden});
    gradient_ = at::randn({2, 24, kHidden});
  }

  Pass pass(bool recomputes) {
    std::vector<Weight*> bound;
    gradients_.zero_();
    for (Weight& weight : weights_) {
      weight.grad_written = false;
      weight.value.mutable_grad().reset();
      bound.push_back(&weight);
    }
    const Batch batch{.number = 5};
    const SegmentContext context{.batch = batch, .weights = bound};
    at::Tensor input = input_.clone().requires_grad_(true);
    Pass pass;
    at::Tensor output;
    {
      const RecomputationGuard guard(recomputes);
      const test::RecordedOperations recorded;
      output = segment_->forward(context, input);
      pass.matmuls = recorded.matmuls();
    }
    EXPECT_EQ(output.sizes(), input.sizes());
    torch::autograd::backward({std::move(output)}, {gradient_});
    pass.gradients.push_back(input.grad());
    for (const Weight& weight : weights_) {
      // By LibTorch's graph, or straight.
      const at::Tensor& of_graph = weight.value.grad();
      pass.gradients.push_back(of_graph.defined() ? of_graph.clone() : weight.grad.clone());
    }
    return pass;
  }

 private:
  std::shared_ptr<const Segment> segment_;
  std::vector<Weight> weights_;
  at::Tensor gradients_;  // of all weights
  at::Tensor input_, gradient_;
};

class Recomputation : public ::testing::Test {
 protected:
  void SetUp() override { aten::take_always(true); }
  void TearDown() override { aten::take_always(false); }
};

TEST_F(Recomputation, HasTheGradientsOfTheFirstForwardWithOneMatmulLess) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    LayerOfADevice layer(kind);
    const Pass first = layer.pass(false);
    const Pass again = layer.pass(true);
    EXPECT_EQ(again.matmuls, first.matmuls - kind.matmuls_less);
    ASSERT_EQ(again.gradients.size(), first.gradients.size());
    for (std::size_t i = 0; i < first.gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(again.gradients[i], first.gradients[i])) << i;
      EXPECT_GT(first.gradients[i].abs().max().item<float>(), 0) << i;
    }
  }
}

}  // namespace
}  // namespace tandem
