// config.json: both spellings are understood, what cannot be computed is refused.
#include "models/io/hf_config.hpp"

#include <cmath>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "models/causal_lm.hpp"
#include "tests/data/references.hpp"

namespace tandem {
namespace {

using test::expect_error;

constexpr std::string_view kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 1, "eos_token_id": [2, 3], "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
  "initializer_range": 0.03, "intermediate_size": 160, "max_position_embeddings": 512,
  "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "vocab_size": 331, "pad_token_id": 94
})";
constexpr std::string_view kGpt2 = R"({
  "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0,
  "resid_pdrop": 0.0, "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 96, "vocab_size": 300,
  "layer_norm_epsilon": 1e-05, "bos_token_id": 299, "eos_token_id": 299
})";

HfConfig parse(std::string_view json) { return parse_hf_config(json, "config.json"); }

std::string changed(std::string_view json, std::string_view key, std::string_view value) {
  return with_json_member(json, key, value);
}

TEST(IoHfConfig, ReadsQwen3) {
  const HfConfig config = parse(kQwen3);
  EXPECT_EQ(config.model_type, "qwen3");
  EXPECT_EQ(config.vocab_size, 331);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.num_hidden_layers, 3);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.intermediate_size, 160);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.initializer_range, 0.03);
  EXPECT_EQ(config.pad_token_id, 94);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(config.dtype, "bfloat16");
}

TEST(IoHfConfig, ReadsGpt2WithItsDefaults) {
  const HfConfig config = parse(kGpt2);
  EXPECT_EQ(config.model_type, "gpt2");
  EXPECT_EQ(config.rope.kind, RotaryKind::kNone);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.pad_token_id.has_value());
  EXPECT_EQ(parse(changed(kGpt2, "n_inner", "100")).intermediate_size, 100);
}

TEST(IoHfConfig, ReadsTheSpellingOfTransformers5) {
  std::string json =
      changed(kQwen3, "rope_parameters", R"({"rope_theta": 500000, "rope_type": "default"})");
  json = changed(changed(json, "rope_theta", "null"), "torch_dtype", "null");
  json = changed(changed(json, "dtype", "\"float32\""), "layer_types",
                 R"(["full_attention", "full_attention", "full_attention"])");
  const HfConfig config = parse(json);
  EXPECT_EQ(config.rope.theta, 500000);
  EXPECT_EQ(config.dtype, "float32");
}

/// Each of these is a type, or none, to Transformers; editors put the mark before a file.
TEST(IoHfConfig, ReadsOddSpellings) {
  EXPECT_EQ(parse(changed(kQwen3, "torch_dtype", "\"torch.float16\"")).dtype, "float16");
  EXPECT_EQ(parse(changed(kQwen3, "torch_dtype", "\"half\"")).dtype, "float16");
  const HfConfig wide = parse(changed(kQwen3, "torch_dtype", "\"float64\""));
  EXPECT_EQ(wide.dtype, "float32");
  EXPECT_EQ(wide.notes.back(), "torch_dtype: float64 is read as float32");
  EXPECT_EQ(parse(changed(kQwen3, "torch_dtype", "\"auto\"")).dtype,
            parse(changed(kQwen3, "torch_dtype", "null")).dtype);
  EXPECT_EQ(parse("\xEF\xBB\xBF" + std::string(kQwen3)).dtype, "bfloat16");
}

TEST(IoHfConfig, ReadsBothSpellingsOfTheReferenceModelsAlike) {
  for (const auto& model : test::references(
           {"references/small_qwen3", "references/small_gpt2", "references/small_gpt_oss"},
           {"oracles/models/qwen3", "oracles/models/qwen3_tied", "oracles/models/gpt2"})) {
    SCOPED_TRACE(model.string());
    const auto folder = model / "checkpoint";
    const HfConfig a = read_hf_config(folder);
    const HfConfig b = read_hf_config(folder / "config.transformers5.json");
    EXPECT_EQ(a.vocab_size, b.vocab_size);
    EXPECT_EQ(a.hidden_size, b.hidden_size);
    EXPECT_EQ(a.rope, b.rope);
    EXPECT_EQ(a.norm_eps, b.norm_eps);
    EXPECT_EQ(a.intermediate_size, b.intermediate_size);
    EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
    EXPECT_EQ(a.pad_token_id, b.pad_token_id);
    EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
  }
}

class PublishedConfigs : public testing::TestWithParam<test::fs::path> {};

TEST_P(PublishedConfigs, AreRead) {
  const auto& folder = GetParam();
  EXPECT_EQ(read_hf_config(folder / "Qwen3-0.6B.json").hidden_size, 1024);
  EXPECT_EQ(read_hf_config(folder / "Qwen3-14B.json").num_hidden_layers, 40);
  const DropoutRates gpt2 = read_hf_config(folder / "gpt2.json").dropout;
  EXPECT_EQ(gpt2.embedding, 0.1);
  EXPECT_EQ(gpt2.attention, 0.1);
  EXPECT_EQ(gpt2.residual, 0.1);
  EXPECT_EQ(read_hf_config(folder / "Llama-3.1-8B.json").rope,
            (RotaryScaling{.kind = RotaryKind::kLlama3,
                           .theta = 500000,
                           .dim = 128,
                           .factor = 8,
                           .original_positions = 8192}));
  const HfConfig phi = read_hf_config(folder / "Phi-4.json");
  EXPECT_EQ(phi.rope.kind, RotaryKind::kDefault);
  EXPECT_TRUE(phi.windows.empty());
  EXPECT_FALSE(phi.attention_bias);
  EXPECT_FALSE(phi.dropout.any());
  const HfConfig seed = read_hf_config(folder / "Seed-OSS-36B.assembled.json");
  EXPECT_EQ(seed.dropout.embedding, 0);
  EXPECT_EQ(seed.dropout.attention, 0.1);
  EXPECT_EQ(seed.dropout.residual, 0.1);
  EXPECT_TRUE(seed.attention_bias);
  EXPECT_FALSE(seed.attention_out_bias);
  const HfConfig moe = read_hf_config(folder / "Qwen3-30B-A3B.json");
  EXPECT_EQ(moe.experts, 128);
  EXPECT_TRUE(moe.norm_topk_prob);
  EXPECT_TRUE(moe.windows.empty());
  const HfConfig oss = read_hf_config(folder / "gpt-oss-20b.json");
  EXPECT_EQ(oss.packed_experts, !test::is_own(folder));  // not a matter of sizes
  EXPECT_EQ(oss.windows[0], 128);
  EXPECT_EQ(oss.windows[1], 0);
  EXPECT_EQ(oss.rope.kind, RotaryKind::kYarn);
  EXPECT_FALSE(oss.rope.truncate);
  EXPECT_NEAR(oss.rope.attention_factor, 0.1 * std::log(32.0) + 1, 1e-15);
}

INSTANTIATE_TEST_SUITE_P(
    IoHfConfig, PublishedConfigs,
    testing::ValuesIn(test::references({"model_sizes"}, {"data/model_configs"})),
    [](const auto& info) { return test::is_own(info.param) ? "sizes" : "whole"; });

TEST(IoHfConfig, NamesKnownArchitectures) {
  expect_error([] { (void)parse(changed(kQwen3, "model_type", "\"mamba\"")); },
               {"[model config]", "config.json", "\"mamba\" is not supported", "docs/models.md",
                "gemma3_text, gpt2, gpt_oss, llama, mistral, mixtral, phi3, qwen2, qwen3, "
                "qwen3_moe, seed_oss"});
  expect_error([] { (void)parse("{}"); }, {"\"model_type\" is missing"});
}

struct Bad {
  std::string_view key;
  std::string_view value;
  std::string_view expected;
};

TEST(IoHfConfig, RefusesBadQwen3Values) {
  for (const Bad& bad : std::initializer_list<Bad>{
           {"vocab_size", "0", "from 1 to"},
           {"hidden_size", "-64", "$.hidden_size is -64"},
           {"hidden_size", "\"64\"", "an integer is needed"},
           {"hidden_size", "1e30", "$.hidden_size"},
           {"num_key_value_heads", "3", "not a multiple of num_key_value_heads 3"},
           {"num_key_value_heads", "0", "$.num_key_value_heads is 0"},
           {"head_dim", "31", "even number"},
           {"rms_norm_eps", "0", "a number above 0"},
           {"rope_theta", "-1", "a number above 0"},
           {"hidden_act", "\"relu\"", "one of silu"},
           {"rope_scaling", R"({"rope_type": "magic", "factor": 4})",
            "one of default, dynamic, linear, llama3, longrope, yarn"},
           {"rope_scaling", R"({"type": "linear"})", "\"factor\" is missing"},
           {"rope_scaling", R"({"type": "linear", "factor": 0})", "a number above 0"},
           {"rope_parameters", R"({"rope_type": "llama3", "factor": 8})", "\"low_freq_factor\""},
           {"rope_parameters",
            R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})",
            "not above low_freq_factor"},
           {"rope_scaling",
            R"({"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1, 2]})",
            "has 2 numbers, 16 are needed"},
           {"rope_parameters", R"({"full_attention": {"rope_type": "default"}})",
            "for some layers"},
           {"partial_rotary_factor", "0.5", "rotates whole heads"},
           {"sliding_window", "0", "$.sliding_window is 0"},
           {"head_dim", "514", "from 1 to 512"},
           {"layer_types", R"(["full_attention"])", "has 1 entries"},
           {"layer_types", R"(["full_attention", "sliding_attention", "full_attention"])",
            "$.layer_types[1]"},
           {"attention_dropout", "1", "a rate from 0 to below 1"},
           {"attention_dropout", "-0.1", "a rate from 0 to below 1"},
           {"pad_token_id", "331", "to 330"},
           {"eos_token_id", "[1, \"a\"]", "$.eos_token_id[1]"},
           {"pad_token_id", "-332", "from -331 to 330"},
           {"is_causal", "false", "$.is_causal is false"},
           {"per_layer_config", R"({"0": {}})", "$.per_layer_config"},
           {"torch_dtype", "\"int8\"", "one of float32, bfloat16, float16"},
           {"tie_word_embeddings", "1", "true or false"},
           {"initializer_range", "-0.02", "at least 0"},
           {"quantization_config", R"({"quant_method": "mxfp4"})", "quantized"}}) {
    SCOPED_TRACE(bad.key);
    expect_error([&] { (void)parse(changed(kQwen3, bad.key, bad.value)); }, {bad.expected});
  }
}

// Each size is possible by itself.
TEST(IoHfConfig, RefusesSizesThatDoNotFitTogether) {
  const auto refused = [](std::string_view json, std::initializer_list<std::string_view> parts,
                          ExitCode code = ExitCode::kUserInput) {
    expect_error([&] { (void)parse(json); }, parts, code);
  };
  std::string wide = changed(kGpt2, "n_embd", "2052");
  refused(wide, {"the size of a head is 513", "512"});
  std::string llama = changed(kQwen3, "model_type", "\"llama\"");
  llama = changed(without_json_member(llama, "head_dim"), "hidden_size", "4096");
  refused(llama, {"the size of a head is 1024", "512"});
  std::string huge = changed(kQwen3, "hidden_size", "1048576");
  huge = changed(huge, "intermediate_size", "1048576");
  refused(changed(huge, "num_hidden_layers", "10000"), {"number of parameters", "17592186044416"},
          ExitCode::kRefused);
  std::string experts = changed(kQwen3, "model_type", "\"qwen3_moe\"");
  experts = changed(changed(experts, "num_experts", "1048576"), "num_experts_per_tok", "1");
  refused(changed(changed(experts, "moe_intermediate_size", "1048576"), "hidden_size", "1048576"),
          {"number of parameters"}, ExitCode::kRefused);
  experts = changed(experts, "moe_intermediate_size", "1");
  refused(changed(experts, "num_hidden_layers", "10000"), {"experts in all layers", "262144"});
  experts = changed(changed(experts, "num_experts", "65536"), "num_experts_per_tok", "65536");
  refused(changed(experts, "moe_intermediate_size", "1024"), {"width of a token's experts"});
}

TEST(IoHfConfig, RefusesBadGpt2Values) {
  for (const Bad& bad : std::initializer_list<Bad>{
           {"n_head", "5", "not a multiple of n_head 5"},
           {"activation_function", "\"gelu\"", "one of gelu_new"},
           {"scale_attn_by_inverse_layer_idx", "true", "$.scale_attn_by_inverse_layer_idx is true"},
           {"scale_attn_weights", "false", "$.scale_attn_weights is false"},
           {"reorder_and_upcast_attn", "true", "not supported"},
           {"add_cross_attention", "true", "not supported"},
           {"resid_pdrop", "1.5", "a rate from 0 to below 1"}}) {
    SCOPED_TRACE(bad.key);
    expect_error([&] { (void)parse(changed(kGpt2, bad.key, bad.value)); }, {bad.expected});
  }
}

/// A small config of another family, out of Qwen3's.
std::string of_family(std::string_view type) {
  return changed(changed(kQwen3, "model_type", fmt::format("\"{}\"", type)), "vocab_size", "40000");
}

TEST(IoHfConfig, ReadsSlidingWindows) {
  using Windows = std::vector<std::int64_t>;
  for (const std::string_view type : {"qwen2", "qwen3"}) {
    std::string qwen = changed(of_family(type), "sliding_window", "9");
    EXPECT_TRUE(parse(qwen).windows.empty()) << "not switched on";
    expect_error(
        [&] {
          (void)parse(changed(qwen, "layer_types",
                              R"(["sliding_attention", "full_attention", "full_attention"])"));
        },
        {"$.layer_types[0]", "no sliding window is set"});
    qwen = changed(qwen, "use_sliding_window", "true");
    EXPECT_TRUE(parse(qwen).windows.empty()) << "from layer 28 on";
    qwen = changed(qwen, "max_window_layers", "1");
    EXPECT_EQ(parse(qwen).windows, (Windows{0, 9, 9}));
    EXPECT_TRUE(parse(changed(qwen, "sliding_window", "null")).windows.empty());
    qwen = changed(qwen, "layer_types",
                   R"(["sliding_attention", "full_attention", "full_attention"])");
    EXPECT_EQ(parse(qwen).windows, (Windows{9, 0, 0}));
  }
  EXPECT_EQ(parse(changed(of_family("phi3"), "sliding_window", "7")).windows, (Windows{7, 7, 7}));
  EXPECT_TRUE(parse(of_family("phi3")).windows.empty());
  EXPECT_TRUE(parse(changed(of_family("llama"), "sliding_window", "7")).windows.empty());
  EXPECT_EQ(parse(of_family("mistral")).windows, (Windows{4096, 4096, 4096}));
  EXPECT_EQ(parse(changed(of_family("mistral"), "sliding_window", "7")).windows,
            (Windows{7, 7, 7}));
  EXPECT_TRUE(parse(changed(of_family("mistral"), "sliding_window", "null")).windows.empty());
  std::string oss =
      changed(changed(of_family("gpt_oss"), "num_local_experts", "4"), "num_experts_per_tok", "2");
  EXPECT_EQ(parse(oss).rope.kind, RotaryKind::kYarn) << "as in Transformers";
  oss = changed(oss, "rope_scaling", R"({"rope_type": "yarn", "factor": 32.0})");
  EXPECT_EQ(parse(oss).windows, (Windows{128, 0, 128}));
  expect_error([&] { (void)parse(changed(oss, "sliding_window", "null")); }, {"needs a width"});
  expect_error([&] { (void)parse(changed(oss, "num_experts_per_tok", "5")); }, {"from 1 to 4"});
  expect_error(
      [&] { (void)parse(changed(oss, "quantization_config", R"({"quant_method": "awq"})")); },
      {"\"mxfp4\""});
}

TEST(IoHfConfig, ReadsQwen2AndMistral) {
  const HfConfig qwen = parse(changed(of_family("qwen2"), "head_dim", "null"));
  EXPECT_TRUE(qwen.attention_bias) << "whatever the file says";
  EXPECT_FALSE(qwen.attention_out_bias);
  EXPECT_EQ(qwen.head_dim, 16);
  const std::string mistral =
      changed(without_json_member(of_family("mistral"), "num_key_value_heads"),
              "num_attention_heads", "16");
  EXPECT_FALSE(parse(changed(mistral, "attention_bias", "true")).attention_bias);
  EXPECT_EQ(parse(mistral).num_key_value_heads, 8);
  EXPECT_EQ(parse(mistral).head_dim, 32);
  EXPECT_EQ(parse(changed(mistral, "head_dim", "null")).head_dim, 4);
  EXPECT_EQ(parse(changed(mistral, "num_key_value_heads", "null")).num_key_value_heads, 16);
}

TEST(IoHfConfig, ReadsMixtral) {
  std::string mixtral =
      changed(changed(of_family("mixtral"), "num_local_experts", "6"), "num_experts_per_tok", "2");
  const HfConfig config = parse(mixtral);
  EXPECT_TRUE(config.windows.empty()) << "no window unless the file has one";
  EXPECT_EQ(config.experts, 6);
  EXPECT_EQ(config.expert_size, config.intermediate_size);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(parse(without_json_member(mixtral, "rope_theta")).rope.theta, 1e6);
  EXPECT_EQ(parse(changed(mixtral, "sliding_window", "9")).windows,
            (std::vector<std::int64_t>{9, 9, 9}));
  EXPECT_EQ(parse(changed(mixtral, "router_jitter_noise", "0.0")).experts, 6);
  expect_error([&] { (void)parse(changed(mixtral, "router_jitter_noise", "0.1")); },
               {"$.router_jitter_noise", "0.0 (another way of computing"});
  expect_error([&] { (void)parse(changed(mixtral, "num_experts_per_tok", "7")); }, {"from 1 to 6"});
  const HfConfig eight = parse(without_json_member(mixtral, "num_local_experts"));
  EXPECT_EQ(eight.experts, 8) << "as in Transformers";
  EXPECT_NE(eight.notes.at(0).find("num_local_experts 8"), std::string::npos) << eight.notes[0];
}

constexpr std::string_view kGemma3 = R"({
  "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 331,
  "num_attention_heads": 4, "num_hidden_layers": 7, "max_position_embeddings": 512,
  "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9, "query_pre_attn_scalar": 64,
  "rope_theta": 500000, "rope_local_base_freq": 2000,
  "rope_scaling": {"rope_type": "linear", "factor": 8.0}
})";

TEST(IoHfConfig, ReadsGemma3InBothSpellings) {
  const HfConfig old = parse(kGemma3);
  EXPECT_EQ(old.windows, (std::vector<std::int64_t>{9, 9, 9, 9, 9, 0, 9}));
  EXPECT_EQ(old.rope.kind, RotaryKind::kLinear);
  EXPECT_EQ(old.rope.theta, 500000);
  ASSERT_TRUE(old.window_rope);
  EXPECT_EQ(old.window_rope->kind, RotaryKind::kDefault);
  EXPECT_EQ(old.window_rope->theta, 2000);
  EXPECT_EQ(old.attention_scale, 0.125);
  EXPECT_TRUE(old.tie_word_embeddings);
  EXPECT_EQ(old.head_dim, 256);
  EXPECT_EQ(old.num_key_value_heads, 4);
  EXPECT_EQ(old.pad_token_id, 0);

  std::string json(kGemma3);
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) {
    json = without_json_member(json, key);
  }
  EXPECT_EQ(parse(json).rope.theta, 1e6);
  EXPECT_EQ(parse(json).window_rope->theta, 1e4);
  json = changed(json, "rope_parameters",
                 R"({"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
                     "sliding_attention": {"rope_type": "default", "rope_theta": 2000}})");
  EXPECT_EQ(parse(json).rope, old.rope);
  EXPECT_EQ(parse(json).window_rope, old.window_rope);
  EXPECT_EQ(parse(changed(json, "sliding_window_pattern", "2")).windows,
            (std::vector<std::int64_t>{9, 0, 9, 0, 9, 0, 9}));
}

TEST(IoHfConfig, ReadsTheTextPartOfAGemma3WithEyes) {
  const HfConfig config = parse(R"({"model_type": "gemma3", "torch_dtype": "bfloat16",
      "eos_token_id": [1, 106], "vision_config": {"hidden_size": 8}, "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024}})");
  EXPECT_EQ(config.model_type, "gemma3_text");
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.rope.factor, 8);
  EXPECT_EQ(config.windows[0], 1024);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.eos_token_ids, (std::vector<std::int64_t>{1, 106}));
  const HfConfig again = parse(config.json);  // the text model's, as saved
  EXPECT_EQ(again.model_type, "gemma3_text");
  EXPECT_EQ(again.num_key_value_heads, 4);
  EXPECT_EQ(again.dtype, "bfloat16");
  expect_error([&] { (void)parse(R"({"model_type": "gemma3"})"); }, {"text_config", "missing"});
  expect_error(
      [&] { (void)parse(R"({"model_type": "gemma3", "text_config": {"hidden_size": 0}})"); },
      {"text_config", "$.hidden_size"});
  expect_error([&] { (void)parse(R"({"model_type": "gemma3", "text_config": 3})"); },
               {"$.text_config"});
}

TEST(IoHfConfig, RefusesWhatGemma3DoesNotCompute) {
  for (const Bad& bad : std::initializer_list<Bad>{
           {"hidden_activation", "\"gelu\"", "one of gelu_pytorch_tanh"},
           {"final_logit_softcapping", "30.0", "null (another way of computing"},
           {"use_bidirectional_attention", "true", "not supported"},
           {"query_pre_attn_scalar", "0", "a number above 0"},
           {"sliding_window", "null", "needs a width"},
           {"sliding_window_pattern", "0", "from 1 to"},
           {"layer_types", "[\"full_attention\"]", "has 1 entries"},
           {"rope_parameters", "{}", "both there"},
           {"rope_scaling", R"({"rope_type": "magic"})", "one of default"},
           {"rope_local_base_freq", "-1", "a number above 0"}}) {
    SCOPED_TRACE(bad.key);
    expect_error([&] { (void)parse(changed(kGemma3, bad.key, bad.value)); }, {bad.expected});
  }
  const std::string bare = without_json_member(kGemma3, "rope_scaling");
  expect_error([&] { (void)parse(changed(bare, "rope_parameters", R"({"rope_theta": 1e6})")); },
               {"neither full_attention nor sliding_attention"});
  EXPECT_EQ(parse(changed(kGemma3, "attn_logit_softcapping", "50.0")).windows.size(), 7U)
      << "Transformers computes nothing by it";
}

TEST(IoHfConfig, ReadsPhi3sOwnNames) {
  std::string phi = changed(of_family("phi3"), "head_dim", "null");
  EXPECT_EQ(parse(phi).head_dim, 16);
  EXPECT_EQ(parse(phi).pad_token_id, 94);
  phi = changed(phi, "partial_rotary_factor", "0.75");
  EXPECT_EQ(parse(phi).rope.dim, 12);
  phi = changed(changed(phi, "partial_rotary_factor", "0.25"), "original_max_position_embeddings",
                "128");
  phi = changed(phi, "rope_scaling",
                R"({"type": "su", "short_factor": [1, 1.5], "long_factor": [1, 4]})");
  const RotaryScaling rope = parse(phi).rope;
  EXPECT_EQ(rope.kind, RotaryKind::kLongRope);
  EXPECT_EQ(rope.original_positions, 128);
  EXPECT_EQ(rope.factor, 4) << "512 / 128";
  EXPECT_NEAR(rope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(128.0)), 1e-15);
  EXPECT_TRUE(rope.is_long(129));
  expect_error(
      [&] {
        (void)parse(
            changed(of_family("phi3"), "rope_scaling", R"({"type": "llama3", "factor": 8})"));
      },
      {"one of default, longrope"});
  expect_error([&] { (void)parse(changed(phi, "attention_bias", "true")); },
               {"$.attention_bias is true"});
}

TEST(IoHfConfig, KnowsTheFamiliesDefaultPadding) {
  std::string json(of_family("phi3"));
  const std::size_t at = json.find(", \"pad_token_id\": 94");
  ASSERT_NE(at, std::string::npos);
  json.erase(at, 20);
  EXPECT_EQ(parse(json).pad_token_id, 32000);
  EXPECT_EQ(parse(changed(json, "pad_token_id", "null")).pad_token_id, std::nullopt);
}

TEST(IoHfConfig, LeavesOutEndsThatNoTextHas) {
  EXPECT_EQ(parse(changed(kQwen3, "eos_token_id", "[2, -1, 331]")).eos_token_ids,
            std::vector<std::int64_t>{2});
  EXPECT_EQ(parse(changed(kQwen3, "bos_token_id", "-1")).bos_token_id, std::nullopt);
  EXPECT_EQ(parse(changed(kQwen3, "pad_token_id", "-1")).pad_token_id, 330);
}

TEST(IoHfConfig, RefusesMissingFiles) {
  const test::TempDir dir;
  expect_error([&] { (void)read_hf_config(dir.path()); }, {"config.json", "No such file"});
  test::put(dir / "config.json", "not json");
  expect_error([&] { (void)read_hf_config(dir.path()); }, {"config.json", "not valid JSON"});
}

TEST(IoHfConfig, WritesTheOriginalWithAnotherType) {
  const HfConfig config = parse(kQwen3);
  std::string expected(kQwen3);
  expected.replace(expected.find("\"bfloat16\""), 10, "\"float32\"");
  EXPECT_EQ(hf_config_json(config, "float32"), expected);

  const HfConfig bare = parse(kGpt2);
  EXPECT_EQ(parse(hf_config_json(bare, "float16")).dtype, "float16");

  const HfConfig fresh =
      parse(changed(changed(kGpt2, "dtype", "\"float32\""), "x", "{\"dtype\": 1}"));
  const std::string json = hf_config_json(fresh, "bfloat16");
  EXPECT_EQ(parse(json).dtype, "bfloat16");
  EXPECT_EQ(json.find("torch_dtype"), std::string::npos);
  EXPECT_NE(json.find("{\"dtype\": 1}"), std::string::npos);
}

TEST(IoHfConfig, LeavesOutAMember) {
  EXPECT_EQ(without_json_member(R"({"a": 1, "b": [2, {"c": 3}], "d": 4})", "b"),
            R"({"a": 1, "d": 4})");
  EXPECT_EQ(without_json_member(R"({"a": 1})", "a"), "{}");
  EXPECT_EQ(without_json_member("{\n  \"a\": 1,\n  \"b\": 2\n}", "b"), "{\n  \"a\": 1\n}");
  EXPECT_EQ(without_json_member(R"({"a": 1})", "c"), R"({"a": 1})");
}

}  // namespace
}  // namespace tandem
