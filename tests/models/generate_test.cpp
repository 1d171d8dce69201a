// Sampling from logits: the most likely token, or one of the likely ones, the same for the same
// seed.
#include "models/generate.hpp"

#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/config/config.hpp"
#include "models/causal_lm.hpp"
#include "models/pretrained.hpp"

namespace tandem {
namespace {

// Probabilities 0.5, 0.3, 0.15, 0.05, in another order.
const std::vector<float> kLogits = {std::log(0.15F), std::log(0.5F), std::log(0.05F),
                                    std::log(0.3F)};

std::vector<double> shares(const GenerateOptions& options) {
  std::vector<double> counts(kLogits.size());
  constexpr std::uint64_t kDraws = 20'000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    counts[static_cast<std::size_t>(choose_token(kLogits, options, i))] += 1.0 / kDraws;
  }
  return counts;
}

TEST(Generate, WithoutTemperatureTheMostLikelyTokenFollows) {
  EXPECT_EQ(choose_token(kLogits, {}, 0), 1);
  EXPECT_EQ(choose_token(kLogits, {.seed = 7}, 3), 1);
}

TEST(Generate, DrawsByProbability) {
  const std::vector<double> even = shares({.temperature = 1});
  EXPECT_NEAR(even[1], 0.5, 0.02);
  EXPECT_NEAR(even[3], 0.3, 0.02);
  EXPECT_NEAR(even[0], 0.15, 0.02);
  EXPECT_NEAR(even[2], 0.05, 0.02);
  const std::vector<double> sharp = shares({.temperature = 0.5});
  EXPECT_NEAR(sharp[1], 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025), 0.02);
}

TEST(Generate, TopPLeavesTheUnlikelyOut) {
  const std::vector<double> most = shares({.temperature = 1, .top_p = 0.7});
  EXPECT_NEAR(most[1], 0.625, 0.02);
  EXPECT_NEAR(most[3], 0.375, 0.02);
  EXPECT_EQ(most[0] + most[2], 0);
  EXPECT_NEAR(shares({.temperature = 1, .top_p = 0})[1], 1, 1e-9) << "one token stays in any case";
}

TEST(Generate, TheSameSeedDrawsTheSame) {
  const GenerateOptions options{.temperature = 1, .seed = 5};
  int others = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(choose_token(kLogits, options, i), choose_token(kLogits, options, i));
    others += choose_token(kLogits, {.temperature = 1, .seed = 6}, i) !=
              choose_token(kLogits, options, i);
  }
  EXPECT_GT(others, 20);
}

/// Small models whose continuation differs from the whole if a position, a window or a frequency is
/// off.
constexpr std::string_view kGpt2 = R"({
  "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0,
  "resid_pdrop": 0.0, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 97,
  "initializer_range": 0.3})";
constexpr std::string_view kPhi3 = R"({
  "model_type": "phi3", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
  "max_position_embeddings": 64, "original_max_position_embeddings": 12, "sliding_window": 7,
  "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 4, 8]},
  "initializer_range": 0.3})";

constexpr std::string_view kQwen2 = R"({
  "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
  "max_position_embeddings": 64, "use_sliding_window": true, "sliding_window": 6,
  "max_window_layers": 1, "initializer_range": 0.3})";
constexpr std::string_view kMistral = R"({
  "model_type": "mistral", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
  "max_position_embeddings": 64, "sliding_window": 5, "head_dim": 12, "initializer_range": 0.3})";

constexpr std::string_view kMixtral = R"({
  "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 24,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
  "max_position_embeddings": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
  "initializer_range": 0.3})";
constexpr std::string_view kGemma3 = R"({
  "model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "head_dim": 12,
  "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
  "max_position_embeddings": 64, "sliding_window": 6, "sliding_window_pattern": 3,
  "rope_scaling": {"rope_type": "linear", "factor": 8}, "initializer_range": 0.3})";

TEST(Generate, ContinuedTextsHaveTheLogitsOfWholeOnes) {
  for (const std::string_view json : {kGpt2, kPhi3, kQwen2, kMistral, kMixtral, kGemma3}) {
    const HfConfig config = parse_hf_config(json, "config.json");
    Model model = make_causal_lm(config);
    model.source = random_weights(config, 3);
    Engine engine({.model = std::move(model),
                   .config = parse_config(R"({"train_micro_batch_size_per_gpu": 1})", "test", 1)});
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < 40; ++i) {
      ids.push_back(i * i % 97);
    }
    const auto tokens = [&](std::int64_t from, std::int64_t to) {
      return at::from_blob(ids.data(), {2, 20}, at::kLong).narrow(1, from, to - from).contiguous();
    };
    auto memory = std::make_shared<TextMemory>();
    for (std::int64_t from = 0; from < 20;) {
      const std::int64_t to = from == 0 ? 5 : from + 1;
      if (config.rope.is_long(to) && !config.rope.is_long(from)) {
        memory = std::make_shared<TextMemory>();  // all frequencies are others from here on
        from = 0;
      }
      const at::Tensor got = engine.logits({.inputs = tokens(from, to), .memory = memory});
      ASSERT_EQ(memory->position, to);
      // The whole text up to here: with LongRoPE its length counts.
      const at::Tensor whole = engine.logits({.inputs = tokens(0, to)}).narrow(1, to - 1, 1);
      ASSERT_EQ(got.sizes(), whole.sizes());
      EXPECT_LE((got - whole).abs().max().item<float>(), 1e-4 * whole.abs().max().item<float>())
          << to << " positions";
      from = to;
    }
  }
}

}  // namespace
}  // namespace tandem
