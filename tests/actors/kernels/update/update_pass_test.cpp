// Passes ahead of the verdict in every layout of the state: committed, made again, taken back.
#include "actors/kernels/update/update_pass.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/actors/kernels/update/packed_reference.hpp"

namespace tandem {
namespace {

using test::LayoutCase;
using test::LayoutShard;

constexpr std::size_t kElements = 9001;  // more than two of the blocks in which weights are kept

const UpdateConfig kAdamW{.kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1, .seed = 5};
const LayoutCase kCases[] = {
    {StateLayout::kFp32, DType::kF32, DType::kF32},
    {StateLayout::kFp32, DType::kBF16, DType::kF32},
    {StateLayout::kSplit, DType::kBF16, DType::kF32},
    {StateLayout::kBf16, DType::kBF16, DType::kBF16},
    {StateLayout::kBf16, DType::kF32, DType::kF32},
    {StateLayout::kInt8, DType::kBF16, DType::kBF16},
    {StateLayout::kInt8, DType::kF32, DType::kF32},
};

class UpdatePasses : public ::testing::TestWithParam<LayoutCase> {};
INSTANTIATE_TEST_SUITE_P(Layouts, UpdatePasses, ::testing::ValuesIn(kCases), [](const auto& info) {
  return std::string(name_of(info.param.layout)) + "_" + std::string(name_of(info.param.weight));
});

struct Pair : test::ShardPair {
  explicit Pair(const LayoutCase& types)
      : test::ShardPair(kAdamW, types, kElements, {{.begin = 0, .end = kElements}}) {}

  void run(UpdatePass pass, const UpdateStep& step) {
    // Chunks as the optimizer cuts them.
    for (std::size_t begin = 0; begin < kElements; begin += 5120) {
      run_update_pass(pass, unit, &step, begin, std::min(kElements, begin + 5120));
    }
  }
};

/// Master, moments and weight as they stand in `buffers`.
std::vector<float> numbers(const UpdateBuffers& b) {
  std::vector<float> all(3 * kElements);
  read_master(b, all.data(), 0, kElements);
  read_state(b, 0, all.data() + kElements, 0, kElements);
  read_state(b, 1, all.data() + 2 * kElements, 0, kElements);
  if (b.weight != nullptr) {
    for (std::size_t i = 0; i < kElements; ++i) {
      all.push_back(static_cast<const std::uint16_t*>(b.weight)[i]);
    }
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST_P(UpdatePasses, ACommitIsTheUpdateInPlace) {
  const UpdateStep step = UpdateStep::make(kAdamW, 4, 0.5);
  Pair ahead(GetParam());
  LayoutShard direct(kAdamW, GetParam(), kElements, 7);
  const std::vector<float> before = numbers(direct.buffers);
  for (int t = 0; t < 3; ++t) {
    ahead.run(UpdatePass::kSpeculative, step);
    commit_speculative(ahead.unit);
    apply_update(step, direct.buffers, 0, kElements);
    EXPECT_TRUE(same_bits(numbers(ahead.unit.buffers), numbers(direct.buffers))) << "step " << t;
  }
  EXPECT_FALSE(same_bits(before, numbers(direct.buffers)));
}

TEST_P(UpdatePasses, APassMadeAgainForgetsTheFirst) {
  const UpdateStep early = UpdateStep::make(kAdamW, 4, 1.0);
  const UpdateStep clipped = UpdateStep::make(kAdamW, 4, 0.125);
  Pair ahead(GetParam());
  LayoutShard direct(kAdamW, GetParam(), kElements, 7);
  ahead.run(UpdatePass::kSpeculative, early);
  ahead.run(UpdatePass::kRedo, clipped);
  apply_update(clipped, direct.buffers, 0, kElements);
  EXPECT_TRUE(same_bits(numbers(ahead.unit.buffers), numbers(direct.buffers)));
}

TEST_P(UpdatePasses, APassTakenBackLeavesNoBit) {
  Pair ahead(GetParam());
  const std::vector<float> before = numbers(ahead.unit.buffers);
  ahead.run(UpdatePass::kSpeculative, UpdateStep::make(kAdamW, 4, HUGE_VAL));
  EXPECT_FALSE(
      same_bits(before, numbers(ahead.unit.buffers)));  // the weight, or what it is half of
  ahead.run(UpdatePass::kRollback, {});
  EXPECT_TRUE(same_bits(before, numbers(ahead.unit.buffers)));
}

}  // namespace
}  // namespace tandem
