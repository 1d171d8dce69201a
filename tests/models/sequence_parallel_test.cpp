// Rows that several ranks share (sequence_parallel_size): groups of 1, 2 and 4 ranks beside one
// rank that has all tokens, for every kind of model, packed rows, dropout, evaluation and
// a run that goes on in groups of another size.
//
// The loss of given weights has the same bits in every group. Gradients of weights are sums over
// the parts' tokens, so they and all results that depend on them are close, not equal; where sums
// are made in fixed blocks of tokens, everything is equal in fp32.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "engine/tensors/row_part.hpp"
#include "models/io/random_init.hpp"
#include "models/layers/aten/layers.hpp"
#include "tests/models/small_models.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

struct Kind {
  const char* name;
  const char* config;  // its members beside the sizes
  std::int64_t kv_heads = 2;
};
void PrintTo(const Kind& one, std::ostream* out) { *out << one.name; }

constexpr Kind kKinds[] = {
    {"gpt2", R"("model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 32, "n_head": 4,
                "n_layer": 2, "n_positions": 64)"},
    {"gpt2_dropout",
     R"("model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 32, "n_head": 4,
        "n_layer": 2, "n_positions": 64, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
        "attn_pdrop": 0.1)"},
    {"llama", R"("model_type": "llama", "rms_norm_eps": 1e-6)", 1},
    {"mistral", R"("model_type": "mistral", "sliding_window": 9)", 4},
    {"qwen2", R"("model_type": "qwen2")"},
    {"qwen3", R"("model_type": "qwen3", "rms_norm_eps": 1e-6, "attention_dropout": 0.1)"},
    {"qwen3_tied", R"("model_type": "qwen3", "tie_word_embeddings": true)", 4},
    {"phi3", R"("model_type": "phi3", "pad_token_id": 0)"},
    {"seed_oss", R"("model_type": "seed_oss")"},
    {"gemma3", R"("model_type": "gemma3_text", "sliding_window": 6, "query_pre_attn_scalar": 8,
                  "hidden_activation": "gelu_pytorch_tanh")"},
    {"gpt_oss", R"("model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
                   "sliding_window": 6, "output_router_logits": true,
                   "rope_scaling": {"rope_type": "linear", "factor": 2.0})"},
    {"mixtral", R"("model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2)"},
    {"qwen3_moe", R"("model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                     "moe_intermediate_size": 24, "output_router_logits": true,
                     "router_aux_loss_coef": 0.1)"}};

HfConfig config_of(const Kind& kind) { return test::small_config(kind.config, 2, kind.kv_heads); }

/// Texts of unequal length, the longest of 42 tokens, of which no group of 4 has equal parts.
std::shared_ptr<const Dataset> texts(bool packed) {
  return test::small_texts(
      24, 67, packed ? 54 : 0, [](std::int32_t i) { return 1 + (i * 19 + 7) % 42; },
      [](std::int32_t i, std::size_t t, std::size_t length) {
        return t > length / 3 && (i % 5 != 0 || t + 2 < length);
      });
}

struct Shares {
  int ranks = 1;
  int sharers = 1;
  int micro_batches = 2;  // per step, over all ranks
  int stage = 3;
  bool packed = false;
  bool recomputes = false;
  const char* type = "fp32";
  LossMean mean = LossMean::kMicroBatches;
  int blocks = 0;
};

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::int64_t> tokens;
  EvalSums before, after;
  std::vector<std::vector<float>> weights;
};

Engine engine_of(Model model, const Shares& run, const std::shared_ptr<Communicator>& ranks) {
  EngineOptions options;
  options.compute_threads = 1;
  options.plans_run = false;
  options.loss_mean = run.mean;
  options.activation_checkpointing = run.recomputes;
  options.sequence_blocks = run.blocks;
  return Engine({.model = std::move(model),
                 .config = ConfigSource::of_text(fmt::format(
                     R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
                "sequence_parallel_size": {}, "zero_optimization": {{"stage": {}}},
                "bf16": {{"enabled": {}}},
                "optimizer": {{"type": "SGD", "params": {{"lr": 0.1}}}}}})",
                     run.micro_batches / (run.ranks / run.sharers), run.sharers, run.stage,
                     run.type == std::string_view("bf16"))),
                 .options = options,
                 .dataset = texts(run.packed),
                 .epochs = 0,
                 .communicator = ranks});
}

Trained trained(Engine& engine, const Shares& run, int steps) {
  Trained all;
  const auto held_out = texts(run.packed);
  all.before = engine.evaluate_sums(*held_out, {.micro_batch = 3});
  for (int step = 0; step < steps; ++step) {
    const StepResult result = *engine.train_step();
    all.losses.push_back(result.loss);
    all.norms.push_back(result.verdict.norm.value);
    all.tokens.push_back(result.tokens);
  }
  all.after = engine.evaluate_sums(*held_out, {.micro_batch = 3});
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    all.weights.emplace_back(values.begin(), values.end());
  });
  return all;
}

Trained train(const HfConfig& config, const Shares& run, int steps = 3) {
  const auto all = on_ranks(run.ranks, [&](const std::shared_ptr<Communicator>& ranks) {
    Engine engine = engine_of(test::small_model(config), run, ranks);
    return trained(engine, run, steps);
  });
  for (const Trained& one : all) {
    EXPECT_EQ(one.losses, all.front().losses) << "the ranks of one run agree";
    EXPECT_EQ(one.weights, all.front().weights);
  }
  return all.front();
}

/// Returns the norm of the difference of two sets of weights, relative to that of `a`.
double distance(const std::vector<std::vector<float>>& a,
                const std::vector<std::vector<float>>& b) {
  double difference = 0;
  double whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      const double apart = static_cast<double>(a[i][j]) - static_cast<double>(b[i][j]);
      difference += apart * apart;
      whole += static_cast<double>(a[i][j]) * static_cast<double>(a[i][j]);
    }
  }
  return std::sqrt(difference / whole);
}

constexpr double kLossLimit = 2e-6;
constexpr double kNormLimit = 2e-6;
constexpr double kWeightLimit = 1e-6;

void expect_near(const Trained& shared, const Trained& alone, bool same_bits = true) {
  ASSERT_EQ(shared.losses.size(), alone.losses.size());
  EXPECT_EQ(shared.tokens, alone.tokens);
  if (same_bits) {
    EXPECT_EQ(shared.losses[0], alone.losses[0]) << "of the same weights";
    EXPECT_EQ(shared.before.loss, alone.before.loss);
  }
  EXPECT_EQ(shared.before.labels, alone.before.labels);
  EXPECT_EQ(shared.before.records, alone.before.records);
  EXPECT_NEAR(shared.before.loss / alone.before.loss, 1, kLossLimit);
  EXPECT_NEAR(shared.after.loss / alone.after.loss, 1, kLossLimit);
  for (std::size_t step = 0; step < alone.losses.size(); ++step) {
    EXPECT_NEAR(shared.losses[step] / alone.losses[step], 1, kLossLimit) << step;
    EXPECT_NEAR(shared.norms[step] / alone.norms[step], 1, kNormLimit) << step;
  }
  EXPECT_LE(distance(shared.weights, alone.weights), kWeightLimit);
}

class SharedRowsOfKinds : public testing::TestWithParam<Kind> {};

TEST_P(SharedRowsOfKinds, TrainAsOneRankDoes) {
  const HfConfig config = config_of(GetParam());
  // The router's own loss adds probabilities in double, rank by rank.
  const bool balanced = config.output_router_logits;
  for (const bool packed : {false, true}) {
    const Trained alone = train(config, {.packed = packed});
    EXPECT_NE(alone.after.loss, alone.before.loss) << "it learns";
    for (const auto& [ranks, sharers] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} share rows, packed {}", ranks, sharers, packed));
      expect_near(train(config, {.ranks = ranks, .sharers = sharers, .packed = packed}), alone,
                  !balanced);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SharedRowsOfKinds, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

const Kind& kind_of(std::string_view name) { return *std::ranges::find(kKinds, name, &Kind::name); }

TEST(SharedRows, BitsDependOnTheGroupAlone) {
  const HfConfig config = config_of(kind_of("qwen3"));
  const Trained one = train(config, {.ranks = 2, .sharers = 2, .packed = true});
  for (const Shares& run : {Shares{.ranks = 4, .sharers = 2, .stage = 0, .packed = true},
                            Shares{.ranks = 4, .sharers = 2, .stage = 2, .packed = true},
                            Shares{.ranks = 2, .sharers = 2, .packed = true, .recomputes = true}}) {
    SCOPED_TRACE(fmt::format("{} ranks, stage {}", run.ranks, run.stage));
    const Trained other = train(config, run);
    EXPECT_EQ(other.losses, one.losses);
    EXPECT_EQ(other.weights, one.weights);
  }
}

// ---- sums in fixed blocks

constexpr int kBlocks = 4;

/// With as many key/value heads as the largest group has ranks, an output matrix of its own, and
/// without the routers' own loss: what else there is sums differently.
HfConfig exact_config_of(Kind kind) {
  kind.kv_heads = 4;
  HfConfig config = config_of(kind);
  config.tie_word_embeddings = false;
  config.output_router_logits = false;
  return config;
}

void expect_same(const Trained& shared, const Trained& alone) {
  EXPECT_EQ(shared.losses, alone.losses);
  EXPECT_EQ(shared.norms, alone.norms);
  EXPECT_EQ(shared.before.loss, alone.before.loss);
  EXPECT_EQ(shared.after.loss, alone.after.loss);
  ASSERT_EQ(shared.weights.size(), alone.weights.size());
  for (std::size_t i = 0; i < alone.weights.size(); ++i) {
    EXPECT_TRUE(shared.weights[i] == alone.weights[i])
        << "parameter " << i << ", all " << distance(shared.weights, alone.weights);
  }
}

TEST_P(SharedRowsOfKinds, WithBlocksEveryGroupHasTheSameWeights) {
  const HfConfig config = exact_config_of(GetParam());
  for (const bool packed : {false, true}) {
    const Trained alone = train(config, {.packed = packed, .blocks = kBlocks});
    const Trained without = train(config, {.packed = packed});
    EXPECT_EQ(alone.losses[0], without.losses[0]) << "forward is the same";
    EXPECT_LE(distance(alone.weights, without.weights), kWeightLimit);
    for (const auto& [ranks, sharers] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} share rows, packed {}", ranks, sharers, packed));
      expect_same(
          train(config, {.ranks = ranks, .sharers = sharers, .packed = packed, .blocks = kBlocks}),
          alone);
    }
  }
}

TEST(SharedRows, WithBlocksBitsDependOnNothingElse) {
  const HfConfig config = exact_config_of(kind_of("qwen3"));
  const Trained alone = train(config, {.micro_batches = 4, .mean = LossMean::kTokens, .blocks = 4});
  for (const Shares& run :
       {Shares{.ranks = 2, .sharers = 2, .stage = 0, .recomputes = true},
        Shares{.ranks = 4, .sharers = 2, .stage = 2}, Shares{.ranks = 4, .sharers = 4, .stage = 1},
        Shares{.ranks = 2, .sharers = 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} share, stage {}", run.ranks, run.sharers, run.stage));
    Shares same = run;
    same.micro_batches = 4;
    same.mean = LossMean::kTokens;
    same.blocks = 4;
    expect_same(train(config, same), alone);
  }
}

/// As the checkpoint "two" in the folder.
void save_after_two_steps(const HfConfig& config, const Shares& run, const test::TempDir& folder) {
  on_ranks(run.ranks, [&](const std::shared_ptr<Communicator>& ranks) {
    Engine engine = engine_of(test::small_model(config), run, ranks);
    (void)engine.train_step();
    (void)engine.train_step();
    engine.save_checkpoint(folder.path(), "two");
    return 0;
  });
}

TEST(SharedRows, WithBlocksARunGoesOnInGroupsOfAnotherSizeAsIfNothingWas) {
  const HfConfig config = exact_config_of(kind_of("llama"));
  const test::TempDir folder;
  const Trained whole = train(config, {.blocks = kBlocks}, 4);
  save_after_two_steps(config, {.ranks = 4, .sharers = 4, .blocks = kBlocks}, folder);
  for (const Shares& then :
       {Shares{.blocks = kBlocks}, Shares{.ranks = 2, .sharers = 2, .blocks = kBlocks}}) {
    const auto all = on_ranks(then.ranks, [&](const std::shared_ptr<Communicator>& ranks) {
      Engine engine = engine_of(test::small_model(config), then, ranks);
      engine.load_checkpoint(folder.path(), "two");
      (void)engine.train_step();
      (void)engine.train_step();
      std::vector<std::vector<float>> weights;
      engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
        weights.emplace_back(values.begin(), values.end());
      });
      return weights;
    });
    EXPECT_TRUE(all[0] == whole.weights) << then.ranks;
  }
}

// Where sums cannot be the same: the bound.
TEST(SharedRows, WithBlocksTheRestIsNear) {
  for (const char* name : {"llama", "qwen3_tied", "qwen3_moe"}) {
    SCOPED_TRACE(name);  // copied keys, a matrix of two uses, routers' own loss
    const HfConfig config = config_of(kind_of(name));
    const Trained alone = train(config, {.blocks = kBlocks});
    expect_near(train(config, {.ranks = 4, .sharers = 4, .blocks = kBlocks}), alone,
                !config.output_router_logits);
  }
}

TEST(SharedRows, TheMeanOverTokensIsThatOfWholeRows) {
  const HfConfig config = config_of(kind_of("qwen2"));
  const Trained alone = train(config, {.mean = LossMean::kTokens});
  expect_near(train(config, {.ranks = 4, .sharers = 2, .mean = LossMean::kTokens}), alone);
}

TEST(SharedRows, PlainOperationsShareThemToo) {
  struct Always {
    Always() { aten::take_always(true); }
    ~Always() { aten::take_always(false); }
  } const always;
  for (const char* name : {"gpt2_dropout", "qwen3", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const HfConfig config = config_of(kind_of(name));
    const Trained alone = train(config, {.packed = true});
    expect_near(train(config, {.ranks = 2, .sharers = 2, .packed = true}), alone,
                /*same_bits=*/false);
  }
}

TEST(SharedRows, SixteenBitsAreNear) {
  const HfConfig config = config_of(kind_of("qwen3_tied"));
  const Trained alone = train(config, {.type = "bf16"});
  const Trained shared = train(config, {.ranks = 2, .sharers = 2, .type = "bf16"});
  EXPECT_EQ(shared.losses[0], alone.losses[0]);
  EXPECT_NEAR(shared.losses.back() / alone.losses.back(), 1, 2e-3);
  EXPECT_LE(distance(shared.weights, alone.weights), 2e-3);
}

TEST(SharedRows, ARunGoesOnInGroupsOfAnotherSize) {
  const HfConfig config = config_of(kind_of("qwen3"));
  const test::TempDir folder;
  const Trained whole = train(config, {}, 4);
  save_after_two_steps(config, {.ranks = 4, .sharers = 4}, folder);
  for (const Shares& then :
       {Shares{}, Shares{.ranks = 4, .sharers = 2}, Shares{.ranks = 2, .sharers = 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} share rows", then.ranks, then.sharers));
    const auto losses = on_ranks(then.ranks, [&](const std::shared_ptr<Communicator>& ranks) {
      Engine engine = engine_of(test::small_model(config), then, ranks);
      engine.load_checkpoint(folder.path(), "two");
      std::vector<double> of_steps;
      of_steps.push_back(engine.train_step()->loss);
      of_steps.push_back(engine.train_step()->loss);
      return of_steps;
    });
    EXPECT_NEAR(losses[0][0] / whole.losses[2], 1, kLossLimit);
    EXPECT_NEAR(losses[0][1] / whole.losses[3], 1, kLossLimit);
  }
}

TEST(SharedRows, WhatCannotBeSharedIsRefused) {
  const auto refused = [](std::int64_t kv_heads, int sharers) {
    Model model;
    model.heads = {.heads = 12, .kv_heads = kv_heads};
    return error_text([&] { require_row_sharing(model, sharers); });
  };
  EXPECT_NE(refused(4, 5).find("12 attention heads"), std::string::npos);
  EXPECT_NE(refused(3, 2).find("3 key/value heads"), std::string::npos);
  EXPECT_EQ(refused(3, 6), "no error");
  EXPECT_EQ(refused(4, 2), "no error");
  EXPECT_NE(error_text([] { require_row_sharing({}, 2); }).find("compute whole rows"),
            std::string::npos);
  const auto blocks_refused = [](int sharers, int blocks) {
    Model model;
    model.heads = {.heads = 12, .kv_heads = 12};
    return error_text([&] { require_row_sharing(model, sharers, blocks); });
  };
  EXPECT_NE(blocks_refused(1, 3).find("sequence_blocks is 3"), std::string::npos);
  EXPECT_NE(blocks_refused(4, 2).find("a power of two that is a multiple"), std::string::npos);
  EXPECT_NE(blocks_refused(1, -4).find("sequence_blocks is -4"), std::string::npos);
  EXPECT_EQ(blocks_refused(2, 4), "no error");
  EXPECT_NE(error_text([] { require_row_sharing({}, 1, 2); }).find("compute whole rows"),
            std::string::npos);
  const at::Tensor image = at::zeros({2, 3, 4, 4});
  EXPECT_NE(error_text([&] {
              (void)with_part({.inputs = image, .labels = at::zeros({2}, at::kLong)},
                              {.ranks = 2, .place = 0});
            }).find("cannot be cut into tokens"),
            std::string::npos);
}

// ---- adapters

TEST(SharedRows, AdaptersTrainAsOnOneRank) {
  const HfConfig config = exact_config_of(kind_of("qwen3"));
  const auto train_adapters = [&](const Shares& run) {
    return on_ranks(run.ranks,
                    [&](const std::shared_ptr<Communicator>& ranks) {
                      const LoraOptions lora{
                          .rank = 3, .alpha = 5, .dropout = 0.1, .targets = {"all-linear"}};
                      Model model = make_causal_lm(config, {}, 5, {.lora = lora});
                      model.source = [base = random_weights(config, 1)](
                                         const ParameterSpec& parameter, std::int64_t begin,
                                         std::int64_t end, float* out) {
                        parameter.name.find(".lora_") != std::string::npos
                            ? fill_normal(parameter.name, 1, 0.05, begin, end, out)
                            : base(parameter, begin, end, out);
                      };
                      Engine engine = engine_of(std::move(model), run, ranks);
                      return trained(engine, run, 3);
                    })
        .front();
  };
  for (const int blocks : {0, kBlocks}) {
    const Trained alone = train_adapters({.blocks = blocks});
    EXPECT_NE(alone.after.loss, alone.before.loss) << "they learn";
    for (const auto& [ranks, sharers] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} share rows, {} blocks", ranks, sharers, blocks));
      const Trained shared = train_adapters({.ranks = ranks, .sharers = sharers, .blocks = blocks});
      blocks > 0 ? expect_same(shared, alone) : expect_near(shared, alone);
    }
  }
}

// ---- loops of one's own

TEST(SharedRows, RanksOfAGroupThatHoldOtherBatchesAreRefused) {
  const HfConfig config = config_of(kind_of("qwen2"));
  for (const bool longer : {false, true}) {
    const std::string said = error_text([&] {
      on_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
        Engine engine = engine_of(test::small_model(config),
                                  {.ranks = 2, .sharers = 2, .micro_batches = 1}, ranks);
        const std::int64_t length = longer ? 8 + ranks->rank() : 8;
        const at::Tensor tokens = at::arange(1, 1 + length).add(longer ? 0 : ranks->rank());
        const Batch batch{.inputs = tokens.view({1, -1}), .labels = tokens.view({1, -1})};
        const auto loss = engine.forward(batch);
        engine.backward(loss);
        engine.step();
        return 0;
      });
    });
    EXPECT_NE(said.find("hold different batches"), std::string::npos) << said;
    EXPECT_NE(said.find(longer ? "1 rows of 8 tokens, number 1 of them 1 of 9"
                               : "1 rows of 8 tokens, number 1 of them 1 of 8"),
              std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace tandem
