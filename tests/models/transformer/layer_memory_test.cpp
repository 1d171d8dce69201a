// The memory of the CPU's own layers beside the memory plan's figures, counted by ATen's allocator.
#include "models/transformer/layer_memory.hpp"

#include <array>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/types/token_tiles.hpp"
#include "tests/support/counting_allocator.hpp"

namespace tandem {
namespace {

class BlockMemory : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  test::CountingAllocator counting_;
  test::CountedTensors counted_{counting_};
};

// Weights are large beside activations here, so that what is missing of the sums would be seen.
TEST_P(BlockMemory, CountsTheSumsOfBlocks) {
  constexpr std::int64_t kRows = 2, kLength = 16;
  const bool wide = GetParam() == at::kFloat;
  // The MLP's weights are most, or attention's, or those of its last projection.
  for (const auto& [intermediate, heads, kv_heads] :
       {std::array<std::int64_t, 3>{1024, 2, 2}, {32, 16, 16}, {32, 32, 1}}) {
    const LayerShape shape{.hidden = 64,
                           .intermediate = intermediate,
                           .norm = NormKind::kRms,
                           .attention = {.heads = heads, .kv_heads = kv_heads, .head_dim = 32},
                           .activation = Activation::kSwiGlu};
    const LayerNames names{.attention_norm = {"a"},
                           .qkv = {"qkv"},
                           .qkv_bias = {},
                           .qk_norm = {},
                           .attention_out = {"o"},
                           .attention_out_bias = {},
                           .mlp_norm = {"m"},
                           .up = {"up"},
                           .up_bias = {},
                           .down = {"down"},
                           .down_bias = {}};
    std::vector<Weight> weights;
    const UnitSpec unit = block_units("block", shape, names, LeafModule::kBlock)[0];
    for (const ParameterSpec& p : unit.parameters) {
      weights.push_back({.value = at::randn(p.shape).mul_(0.05).to(GetParam()),
                         .grad = at::empty(p.shape, GetParam())});
    }
    std::vector<Weight*> bound;
    for (Weight& weight : weights) {
      bound.push_back(&weight);
    }
    const auto block = layer_segment(shape, names);
    const Batch none{.number = 0};
    const SegmentContext context{.batch = none, .weights = bound};
    for (const std::int64_t blocks : {0, 1, 2, 4}) {
      const TokenTilesGuard guard(blocks == 0 ? TokenTiles()
                                              : TokenTiles{.length = kLength, .count = blocks});
      const ActivationBytes planned =
          layer_activations(shape, {.rows = kRows,
                                    .length = kLength,
                                    .type = wide ? DType::kF32 : DType::kBF16,
                                    .blocks = blocks});
      const at::Tensor input = at::randn({kRows, kLength, 64}).to(GetParam()).requires_grad_(true);
      const std::int64_t empty = counting_.live;
      at::Tensor output = block->forward(context, input);
      const at::Tensor gradient = at::ones_like(output);
      counting_.peak = counting_.live.load();
      torch::autograd::backward({std::move(output)}, {gradient});
      const auto held = static_cast<double>(counting_.peak - empty);
      const auto all = static_cast<double>(planned.output + planned.kept + planned.backward);
      EXPECT_GE(all, 0.98 * held) << blocks << " blocks, " << heads << " heads";
      EXPECT_LE(all, 1.1 * held) << blocks << " blocks, " << heads << " heads";
      for (Weight& weight : weights) {
        weight.grad_written = false;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BlockMemory, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.index == 0 ? "fp32" : "bf16"; });

}  // namespace
}  // namespace tandem
