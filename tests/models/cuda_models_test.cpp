// The model families on a real GPU, where there is one: near the CPU's losses in fp32, and in bf16
// the same bits in every run, whatever overlaps, is recomputed or lies in host memory. Rows and
// heads are as large as the library's fused attention wants them, whose sums would come in any
// order if it were not told otherwise.
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "engine/tensors/device_choice.hpp"
#include "models/layers/aten/layers.hpp"
#include "tests/models/small_models.hpp"

namespace tandem {
namespace {

struct Kind {
  const char* name;
  const char* config;  // its members beside the sizes
  bool packed = false;
};
void PrintTo(const Kind& one, std::ostream* out) { *out << one.name; }

constexpr const char* kQwen3 = R"("model_type": "qwen3", "rms_norm_eps": 1e-6)";
constexpr Kind kKinds[] = {
    {"qwen3", kQwen3},
    {"packed", kQwen3, true},
    {"llama",
     R"("model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 256})"},
    {"phi3",
     R"("model_type": "phi3", "rms_norm_eps": 1e-5, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "original_max_position_embeddings": 512, "tie_word_embeddings": false)"},
    {"seed_oss",
     R"("model_type": "seed_oss", "rms_norm_eps": 1e-6, "attention_bias": true,
        "attention_out_bias": false, "mlp_bias": false, "residual_dropout": 0.0)"},
    {"gpt2_with_dropout",
     R"("model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 256, "n_head": 4,
        "n_layer": 3, "n_positions": 512, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1)"},
    {"gemma3",
     R"("model_type": "gemma3_text", "rms_norm_eps": 1e-6, "sliding_window": 64,
        "query_pre_attn_scalar": 64, "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh", "layer_types": ["sliding_attention",
        "full_attention", "sliding_attention"])"},
    {"qwen3_moe",
     R"("model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128, "output_router_logits": true, "router_aux_loss_coef": 0.1)"},
    {"gpt_oss",
     R"("model_type": "gpt_oss", "rms_norm_eps": 1e-5, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": 64, "attention_bias": true,
        "swiglu_limit": 7.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "truncate": false, "original_max_position_embeddings": 256},
        "layer_types": ["sliding_attention", "full_attention",
        "sliding_attention"])"}};

Model model_of(const Kind& kind) {
  const HfConfig config = parse_hf_config(
      fmt::format(R"({{{}, "vocab_size": 512, "hidden_size": 256, "intermediate_size": 384,
                       "num_hidden_layers": 3, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "head_dim": 64, "hidden_act": "silu",
                       "max_position_embeddings": 512, "initializer_range": 0.05}})",
                  kind.config),
      "config.json");
  return test::small_model(config);
}

std::shared_ptr<const Dataset> texts(bool packed) {
  return test::small_texts(
      16, 512, packed ? 512 : 0, [](std::int32_t i) { return 60 + (i * 19 + 7) % 41 * 8; },
      test::learns_all);
}

struct Way {
  DeviceKind device = DeviceKind::kCuda;
  const char* type = "bf16";
  int stage = 3;
  Overlap overlap = Overlap::kFull;
  bool recomputes = false;
  double share = 0;  // the share of boundaries in host memory
};

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
};

Trained train(const Kind& kind, const Way& way) {
  EngineOptions options;
  options.plans_run = false;
  options.device = way.device;
  options.overlap = way.overlap;
  options.activation_checkpointing = way.recomputes;
  options.activation_offload = way.share;
  Engine engine({.model = model_of(kind),
                 .config = ConfigSource::of_text(fmt::format(
                     R"({{"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0.5,
                         "zero_optimization": {{"stage": {}}}, "bf16": {{"enabled": {}}},
                         "optimizer": {{"type": "AdamW", "params": {{"lr": 0.001}}}}}})",
                     way.stage, way.type == std::string("bf16"))),
                 .options = options,
                 .dataset = texts(kind.packed),
                 .epochs = 0});
  Trained all;
  for (int step = 0; step < 4; ++step) {
    const StepResult result = *engine.train_step();
    all.losses.push_back(result.loss);
    all.norms.push_back(result.verdict.norm.value);
  }
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    all.weights.emplace_back(values.begin(), values.end());
  });
  return all;
}

class CudaModels : public ::testing::TestWithParam<Kind> {};

void expect_near(const Trained& got, const Trained& expected) {
  EXPECT_NE(expected.losses.front(), expected.losses.back()) << "it learns";
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-4 * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(got.norms[i], expected.norms[i], 1e-3 * expected.norms[i]) << "step " << i;
  }
}

// The layers of a device, on the CPU.
TEST_P(CudaModels, TrainsByTheirLayersAsByTheCpus) {
  const Way on_cpu{.device = DeviceKind::kCpu, .type = "fp32"};
  const Trained expected = train(GetParam(), on_cpu);
  aten::take_always(true);
  const Trained got = train(GetParam(), on_cpu);
  aten::take_always(false);
  expect_near(got, expected);
}

TEST_P(CudaModels, RealTrainsAsTheCpuDoes) {
  if (const std::string why = why_no_cuda(DeviceFacts::of_machine()); !why.empty()) {
    GTEST_SKIP() << "needs --device cuda: " << why;
  }
  const Trained expected = train(GetParam(), {.device = DeviceKind::kCpu, .type = "fp32"});
  expect_near(train(GetParam(), {.type = "fp32"}), expected);
}

TEST_P(CudaModels, RealRunsHaveTheSameBits) {
  if (const std::string why = why_no_cuda(DeviceFacts::of_machine()); !why.empty()) {
    GTEST_SKIP() << "needs --device cuda: " << why;
  }
  const Trained expected = train(GetParam(), {.stage = 0, .overlap = Overlap::kOff});
  const std::pair<const char*, Way> ways[] = {
      {"again", {.stage = 0, .overlap = Overlap::kOff}},
      {"stage 3, overlapped", {}},
      {"recomputed", {.recomputes = true}},
      {"recomputed, boundaries in host memory", {.recomputes = true, .share = 1}}};
  for (const auto& [name, way] : ways) {
    const Trained got = train(GetParam(), way);
    EXPECT_EQ(got.losses, expected.losses) << name;
    EXPECT_EQ(got.norms, expected.norms) << name;
    EXPECT_TRUE(got.weights == expected.weights) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CudaModels, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tandem
