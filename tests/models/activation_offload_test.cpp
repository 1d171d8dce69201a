// Boundaries of a model's segments that lie elsewhere between forward and backward: beside a
// simulated device in host memory, on the CPU in files. The bits are those of the run that keeps
// them, with dropout, packed rows, experts and rows that two ranks share.
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "tests/models/small_models.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/thread_ranks.hpp"

namespace tandem {
namespace {

struct Kind {
  const char* name;
  const char* config;  // its members beside the sizes
  bool packed = false;
  int ranks = 1;   // which share rows
  int blocks = 0;  // blocks in sums over tokens
  const char* type = "fp32";
};
void PrintTo(const Kind& one, std::ostream* out) { *out << one.name; }

constexpr const char* kQwen3 = R"("model_type": "qwen3", "rms_norm_eps": 1e-6)";
constexpr Kind kKinds[] = {
    {"dropout",
     R"("model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 32, "n_head": 4,
        "n_layer": 5, "n_positions": 64, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1)"},
    {"packed", kQwen3, true},
    {"packed_bf16", kQwen3, true, 1, 0, "bf16"},
    {"experts",
     R"("model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "output_router_logits": true, "router_aux_loss_coef": 0.1)",
     true},
    {"shared_rows", kQwen3, true, 2},
    {"shared_rows_in_blocks", kQwen3, false, 2, 4},
    {"shared_rows_with_dropout",
     R"("model_type": "qwen3", "rms_norm_eps": 1e-6, "attention_dropout": 0.1)", true, 2}};

Model model_of(const Kind& kind) {
  return test::small_model(test::small_config(kind.config, 5, 4));
}

/// Returns texts of unequal length, so that the boundaries of micro-batches differ in size.
std::shared_ptr<const Dataset> texts(bool packed) {
  return test::small_texts(
      16, 67, packed ? 54 : 0, [](std::int32_t i) { return 2 + (i * 19 + 7) % 41; },
      test::learns_all);
}

/// Where boundaries are kept: on the device or in host memory, beside a simulated device or not.
struct Keeping {
  bool recomputes = true;
  DeviceKind device = DeviceKind::kSim;
  double share = 0;
  std::string folder;  // on NVMe
};

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
  std::size_t elsewhere = 0;  // bytes of host memory that boundaries had
};

Trained train(const Kind& kind, const Keeping& keeping) {
  EngineOptions options;
  options.compute_threads = 1;
  options.plans_run = false;
  options.device = keeping.device;
  options.sim = {.to_device_bytes_per_s = 1e12, .to_host_bytes_per_s = 1e12, .latency_s = 0};
  options.activation_checkpointing = keeping.recomputes;
  options.activation_offload = keeping.share;
  options.nvme.path = keeping.folder;
  options.sequence_blocks = kind.blocks;
  return on_ranks(
             kind.ranks,
             [&](const std::shared_ptr<Communicator>& ranks) {
               Engine engine({.model = model_of(kind),
                              .config = ConfigSource::of_text(fmt::format(
                                  R"({{"train_micro_batch_size_per_gpu": 2,
                                   "gradient_accumulation_steps": 2,
                                   "sequence_parallel_size": {}, "zero_optimization": {{"stage": 3}},
                                   "bf16": {{"enabled": {}}},
                                   "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}}}})",
                                  kind.ranks, kind.type == std::string("bf16"))),
                              .options = options,
                              .dataset = texts(kind.packed),
                              .epochs = 0,
                              .communicator = ranks});
               Trained all;
               for (int step = 0; step < 3; ++step) {
                 const StepResult result = *engine.train_step();
                 all.losses.push_back(result.loss);
                 all.norms.push_back(result.verdict.norm.value);
               }
               engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
                 all.weights.emplace_back(values.begin(), values.end());
               });
               all.elsewhere = engine.resident_bytes().boundaries;
               return all;
             })
      .front();
}

void expect_same(const Trained& got, const Trained& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.norms, expected.norms);
  EXPECT_TRUE(got.weights == expected.weights);
}

class OffloadedBoundaries : public testing::TestWithParam<Kind> {};

TEST_P(OffloadedBoundaries, LeaveTheBitsAsTheyAre) {
  const Kind& kind = GetParam();
  const Trained expected = train(kind, {.recomputes = false, .device = DeviceKind::kCpu});
  EXPECT_NE(expected.losses.front(), expected.losses.back()) << "it learns";
  std::size_t fewer = 0;
  for (const double share : {0.0, 0.5, 1.0}) {
    SCOPED_TRACE(fmt::format("share {} beside a simulated device", share));
    const Trained got = train(kind, {.share = share});
    expect_same(got, expected);
    EXPECT_TRUE(share == 0 ? got.elsewhere == 0 : got.elsewhere > fewer);
    fewer = got.elsewhere;
  }
  const test::TempDir folder;
  SCOPED_TRACE("on NVMe");
  const Trained got =
      train(kind, {.device = DeviceKind::kCpu, .share = 1, .folder = folder.path()});
  expect_same(got, expected);
  EXPECT_GT(got.elsewhere, 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, OffloadedBoundaries, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tandem
