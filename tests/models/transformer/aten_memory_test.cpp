// The memory of a device's layers beside the memory plan's figures, counted by ATen's allocator on
// the CPU, where attention is fused as it is on a GPU.
#include "models/transformer/aten_memory.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/layers/aten/layers.hpp"
#include "models/transformer/layer_memory.hpp"
#include "tests/support/counting_allocator.hpp"

namespace tandem {
namespace {

class AtenMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    aten::take_always(true);
    counted_.emplace(counting_);
  }
  void TearDown() override {
    counted_.reset();
    // Another mask takes the place of the one that layers shared, whose memory is the counter's.
    (void)aten::attention(at::zeros({1, 3}), 1, {.heads = 1, .kv_heads = 1, .head_dim = 1}, {}, {},
                          {}, at::zeros({1, 1}, at::kLong));
    aten::take_always(false);
  }

  /// A unit's weights, outside what is counted from now on.
  std::vector<Weight> weights_of(const UnitSpec& unit) {
    std::vector<Weight> weights;
    const at::Tensor values = at::randn({unit.numel()}).mul_(0.05);
    const at::Tensor gradients = at::zeros_like(values);
    std::int64_t begin = 0;
    for (const ParameterSpec& p : unit.parameters) {
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, begin, p.numel()).view(p.shape).detach();
      };
      weights.push_back({.value = part(values).requires_grad_(true), .grad = part(gradients)});
      begin += p.numel();
    }
    return weights;
  }

  test::CountingAllocator counting_;
  std::optional<test::CountedTensors> counted_;
};

void expect_near_above(std::int64_t planned, std::int64_t held, const char* what) {
  EXPECT_GE(static_cast<double>(planned), 0.98 * static_cast<double>(held)) << what;
  EXPECT_LE(static_cast<double>(planned), 1.05 * static_cast<double>(held)) << what;
}

TEST_F(AtenMemory, OfABlockIsWhatThePlanCounts) {
  struct Case {
    bool turns, drops, packed, rms;
  };
  for (const Activation activation : {Activation::kGeluTanh, Activation::kSwiGlu}) {
    // With dropout, attention keeps the probabilities of its row blocks.
    for (const auto& [turns, drops, packed, rms] : {Case{false, false, false, false},
                                                    {true, false, false, false},
                                                    {true, true, false, false},
                                                    {true, false, true, false},
                                                    {true, false, false, true}}) {
      LayerShape shape{.hidden = 192,
                       .intermediate = 512,
                       .norm = NormKind::kLayer,
                       .attention = {.heads = 6, .kv_heads = 6, .head_dim = 32},
                       .activation = activation};
      LayerNames names{.attention_norm = {"a", "ab"},
                       .qkv = {"qkv"},
                       .qkv_bias = {},
                       .qk_norm = {},
                       .attention_out = {"o"},
                       .attention_out_bias = {},
                       .mlp_norm = {"m", "mb"},
                       .up = {"up"},
                       .up_bias = {},
                       .down = {"down"},
                       .down_bias = {}};
      if (rms) {  // with norms of q and k
        shape.norm = NormKind::kRms;
        shape.attention.norms = true;
        names.attention_norm = {"a"};
        names.mlp_norm = {"m"};
        names.qk_norm = {"qn", "kn"};
      }
      if (drops) {
        shape.dropout.rates = {.attention = 0.1, .residual = 0.1};
      }
      if (turns) {
        shape.attention.rotary =
            std::make_shared<RotaryTable>(RotaryScaling{.theta = 1e4, .dim = 32});
      }
      const BatchShape batch{.rows = 2, .length = 256, .accelerator = true, .packed = packed};
      const ActivationBytes planned = layer_activations(shape, batch);
      std::vector<Weight> weights =
          weights_of(block_units("block", shape, names, LeafModule::kBlock)[0]);
      std::vector<Weight*> bound;
      for (Weight& weight : weights) {
        bound.push_back(&weight);
      }
      Batch none{.number = 0};
      if (packed) {
        none.positions = at::arange(2 * 256).remainder(64).view({2, 256});
      }
      const SegmentContext context{.batch = none, .weights = bound};
      const auto block = layer_segment(shape, names);
      at::Tensor input = at::randn({2, 256, 192}).requires_grad_(true);
      (void)block->forward(context, input);  // tables are made, and the mask that layers share
      EXPECT_EQ(planned.scratch, packed ? 2 * 256 * 256 * 4 : 0);
      const std::int64_t empty = counting_.live;
      counting_.peak = empty;
      at::Tensor output = block->forward(context, input);
      SCOPED_TRACE(turns ? "rotated" : "not rotated");
      SCOPED_TRACE(rms ? "rms" : "layer norm");
      SCOPED_TRACE(drops ? "dropped" : "not dropped");
      SCOPED_TRACE(static_cast<int>(activation));
      expect_near_above(planned.output + planned.kept, counting_.live - empty, "kept");
      expect_near_above(planned.output + planned.kept + planned.forward, counting_.peak - empty,
                        "peak of forward");
      const std::int64_t kept = counting_.live;
      counting_.peak = kept;
      const at::Tensor gradient = at::ones_like(output);
      torch::autograd::backward({std::move(output)}, {gradient});
      EXPECT_LE(counting_.peak - kept, planned.backward);
    }
  }
}

TEST_F(AtenMemory, OfTheLossIsWhatThePlanCounts) {
  constexpr std::int64_t kHidden = 64;
  constexpr std::int64_t kVocabulary = 5000;
  const BatchShape batch{.rows = 4, .length = 128, .accelerator = true};
  const ActivationBytes planned = aten::loss_memory(kHidden, kVocabulary, batch);
  std::vector<Weight> weights = weights_of({"head", {{"w", {kVocabulary, kHidden}}}});
  const at::Tensor h = at::randn({4, 128, kHidden}).requires_grad_(true);
  const at::Tensor labels = at::randint(0, kVocabulary, {4, 128});
  const std::int64_t empty = counting_.live;
  counting_.peak = empty;
  at::Tensor loss = aten::loss(h, labels, weights[0]);
  expect_near_above(planned.kept, counting_.live - empty, "kept");
  expect_near_above(planned.kept + planned.forward, counting_.peak - empty, "peak of forward");
}

}  // namespace
}  // namespace tandem
