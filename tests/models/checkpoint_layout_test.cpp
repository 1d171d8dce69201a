// A config's tensors: listed, matched with a checkpoint's, and drawn.
#include "models/checkpoint_layout.hpp"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/causal_lm.hpp"
#include "models/io/weights_writer.hpp"
#include "tests/data/references.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TempDir;
namespace fs = std::filesystem;

HfConfig small_qwen3(bool tied, int layers = 2, bool biased = false) {
  return parse_hf_config(
      fmt::format(
          R"({{"model_type": "qwen3", "hidden_act": "silu", "vocab_size": 11, "hidden_size": 8,
      "num_hidden_layers": {}, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
      "intermediate_size": 10, "max_position_embeddings": 32, "attention_bias": {},
      "tie_word_embeddings": {}}})",
          layers, biased, tied),
      "config.json");
}

void write_fresh(const fs::path& folder, const HfConfig& config,
                 const std::vector<TensorPlan>& plan) {
  WeightsWriter writer(folder, plan);
  while (const TensorPlan* tensor = writer.current()) {
    writer.append_f32(std::vector<float>(static_cast<std::size_t>(tensor->numel()), 0.5F));
  }
  writer.finish();
}

TEST(IoLayout, ListsEveryTensorOfTheReferenceModels) {
  for (const fs::path& model : test::references(
           {"references/small_qwen2", "references/small_qwen3", "references/small_gpt2"},
           {"oracles/models/qwen3", "oracles/models/qwen3_tied", "oracles/models/gpt2"})) {
    SCOPED_TRACE(model.string());
    const fs::path folder = model / "checkpoint";
    const HfConfig config = read_hf_config(folder);
    const CheckpointReader reader = CheckpointReader::open(folder, config);
    std::vector<std::string> names;
    for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
      names.push_back(tensor.name);
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, reader.checkpoint().names());
  }
}

/// Writes GPT-2 as the hub has it: names without "transformer.", and each layer's mask.
void write_in_the_layout_of_the_hub(const CheckpointReader& from, const HfConfig& config,
                                    const fs::path& folder) {
  const std::vector<ParameterSpec> parameters = checkpoint_tensors(config);
  std::vector<TensorPlan> plan;
  for (const ParameterSpec& one : parameters) {
    ASSERT_TRUE(one.name.starts_with("transformer.")) << one.name;
    plan.push_back({one.name.substr(std::strlen("transformer.")), TensorType::kF32, one.shape});
  }
  const std::int64_t positions = config.max_position_embeddings;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    plan.push_back(
        {fmt::format("h.{}.attn.bias", layer), TensorType::kF32, {1, 1, positions, positions}});
  }
  WeightsWriter writer(folder, plan);
  for (const ParameterSpec& one : parameters) {
    std::vector<float> values(static_cast<std::size_t>(one.numel()));
    from.read_f32(one.name, 0, one.numel(), values.data());
    writer.append_f32(values);
  }
  while (const TensorPlan* mask = writer.current()) {
    writer.append_f32(std::vector<float>(static_cast<std::size_t>(mask->numel()), 1.0F));
  }
  writer.finish();
}

TEST(IoLayout, ReadsGpt2InTheLayoutOfTheHub) {
  const fs::path folder = test::own_reference("references/small_gpt2/checkpoint");
  const HfConfig config = read_hf_config(folder);
  const CheckpointReader ours = CheckpointReader::open(folder, config);
  const TempDir dir;
  write_in_the_layout_of_the_hub(ours, config, dir / "model");
  const CheckpointReader hub = CheckpointReader::open(dir / "model", config);
  for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
    std::vector<float> a(static_cast<std::size_t>(tensor.numel()));
    std::vector<float> b(a.size(), -1.0F);
    ours.read_f32(tensor.name, 0, tensor.numel(), a.data());
    hub.read_f32(tensor.name, 0, tensor.numel(), b.data());
    EXPECT_EQ(a, b) << tensor.name;
  }
}

TEST(IoLayout, CountsPublishedModels) {
  const fs::path folder = test::own_reference("model_sizes");
  EXPECT_EQ(parameter_count(read_hf_config(folder / "Qwen3-0.6B.json")), 596'049'920);
  EXPECT_EQ(parameter_count(read_hf_config(folder / "Qwen3-14B.json")), 14'768'307'200);
  EXPECT_EQ(parameter_count(read_hf_config(folder / "gpt2.json")), 124'439'808);
}

TEST(IoLayout, NamesWhatIsMissingOrMisshapen) {
  const HfConfig config = small_qwen3(false);
  const auto with = [&](auto&& change, std::initializer_list<std::string_view> expected) {
    const TempDir dir;
    std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kF32);
    change(plan);
    write_fresh(dir.path(), config, plan);
    expect_error([&] { (void)CheckpointReader::open(dir.path(), config); }, expected);
  };
  with([](auto& plan) { plan.erase(plan.begin() + 3); },
       {"[checkpoint]", "no tensor \"model.layers.0.self_attn.k_proj.weight\"",
        "expected shape [6, 8]"});
  with([](auto& plan) { plan[2].shape = {8, 12}; },
       {"\"model.layers.0.self_attn.q_proj.weight\" has shape [8, 12]", "asks for [12, 8] by",
        "num_attention_heads 2", "head_dim 6"});
  with(
      [](auto& plan) {
        plan.push_back({"model.layers.2.mlp.up_proj.weight", TensorType::kF32, {1}});
      },
      {"\"model.layers.2.mlp.up_proj.weight\" [1]", "does not have"});
  with([](auto& plan) { plan.pop_back(); }, {"\"lm_head.weight\"", "[11, 8]"});
}

TEST(IoLayout, NamesTheMemberThatAsksForWhatIsMissing) {
  const TempDir dir;
  const HfConfig written = small_qwen3(false);
  write_fresh(dir.path(), written, checkpoint_plan(written, TensorType::kF32));
  expect_error([&] { (void)CheckpointReader::open(dir.path(), small_qwen3(false, 2, true)); },
               {"no tensor \"model.layers.0.self_attn.q_proj.bias\"", "attention_bias true"});
  expect_error([&] { (void)CheckpointReader::open(dir.path(), small_qwen3(false, 3)); },
               {"no tensor \"model.layers.2.", "num_hidden_layers 3"});
}

/// As trainers of rewards and of values leave them; Transformers passes over them.
TEST(IoLayout, AHeadOfAnotherTaskIsNoted) {
  const HfConfig config = small_qwen3(false);
  const TempDir dir;
  std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kF32);
  plan.push_back({"v_head.summary.weight", TensorType::kF32, {1, 8}});
  write_fresh(dir.path(), config, plan);
  const CheckpointReader reader = CheckpointReader::open(dir.path(), config);
  ASSERT_EQ(reader.checkpoint().notes().size(), 1u);
  EXPECT_NE(reader.checkpoint().notes()[0].find("v_head.summary.weight"), std::string::npos);
}

/// Scales of a cache of keys and values, tables of positions.
TEST(IoLayout, WhatIsNoParameterIsNoted) {
  const HfConfig config = small_qwen3(false);
  const TempDir dir;
  std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kF32);
  plan.push_back({"model.layers.0.self_attn.k_scale", TensorType::kF32, {1}});
  plan.push_back({"model.layers.1.self_attn.v_scale", TensorType::kF32, {1}});
  write_fresh(dir.path(), config, plan);
  const CheckpointReader reader = CheckpointReader::open(dir.path(), config);
  ASSERT_EQ(reader.checkpoint().notes().size(), 1u);
  EXPECT_NE(reader.checkpoint().notes()[0].find("2 of them, model.layers.0.self_attn.k_scale"),
            std::string::npos);
}

TEST(IoLayout, TellsQuantizedWeightsAndThoseOfAWrappedModel) {
  const HfConfig config = small_qwen3(false);
  for (const char* part : {"qweight", "scales", "weight_scale_inv", "weight_packed"}) {
    const TempDir dir;
    std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kF32);
    plan[2].name = fmt::format("model.layers.0.self_attn.q_proj.{}", part);
    write_fresh(dir.path(), config, plan);
    expect_error([&] { (void)CheckpointReader::open(dir.path(), config); },
                 {"quantized weights (model.layers.0.self_attn.q_proj.", part});
  }
  for (const char* begin : {"module.", "_orig_mod.", "base_model.model."}) {
    const TempDir dir;
    std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kF32);
    for (TensorPlan& tensor : plan) {
      tensor.name = begin + tensor.name;
    }
    write_fresh(dir.path(), config, plan);
    expect_error([&] { (void)CheckpointReader::open(dir.path(), config); },
                 {fmt::format("begin with \"{}\"", begin), "wrapped model", "save_pretrained"});
  }
}

/// A folder without config.json says what it is by the names in it.
TEST(IoLayout, TellsAFolderWithoutAConfig) {
  const TempDir dir;
  fs::create_directories(dir / "checkpoint-500");
  test::put(dir / "checkpoint-500/model.safetensors", "x");
  expect_error([&] { (void)read_hf_config(dir.path()); },
               {"there is no config.json", "has the weights; give", "checkpoint-500"});
  const TempDir metas;
  test::put(metas / "consolidated.00.pth", "x");
  expect_error([&] { (void)read_hf_config(metas.path()); }, {"no config.json", "Meta publishes"});
}

TEST(IoLayout, RefusesWeightsThatAreNoFloats) {
  const HfConfig config = small_qwen3(true);
  const TempDir dir;
  std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kI32);
  WeightsWriter writer(dir.path(), plan);
  while (const TensorPlan* tensor = writer.current()) {
    writer.append(std::vector<std::byte>(tensor->size_bytes()));
  }
  writer.finish();
  expect_error([&] { (void)CheckpointReader::open(dir.path(), config); },
               {"model.embed_tokens.weight", "type I32"});
}

TEST(IoLayout, ATiedModelMayCarryACopyOfItsHead) {
  const HfConfig config = small_qwen3(true);
  const TempDir dir;
  std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kBF16);
  plan.push_back({"lm_head.weight", TensorType::kBF16, {11, 8}});
  write_fresh(dir.path(), config, plan);
  EXPECT_NO_THROW((void)CheckpointReader::open(dir.path(), config));
}

TEST(IoLayout, TransformersLoadsWhatWeWrite) {
  const TempDir dir;
  TANDEM_NEEDS_PYTHON(dir.path(), "torch, transformers");
  for (const std::uint64_t shard_bytes : {std::uint64_t{0}, std::uint64_t{2000}}) {
    const HfConfig config = small_qwen3(true);
    const fs::path folder = dir / ("model" + std::to_string(shard_bytes));
    WeightsWriter writer(folder, checkpoint_plan(config, TensorType::kF32),
                         {.max_shard_bytes = shard_bytes});
    for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
      std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
      fill_initial(tensor, 7, {}, 0, tensor.numel(), values.data());
      writer.append_f32(values);
    }
    writer.finish();
    write_hf_config(config, folder, "float32");
    std::string output;
    EXPECT_TRUE(test::run_python(dir.path(), R"(
import sys, torch
from transformers import AutoModelForCausalLM
model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True)
assert not any(info[k] for k in ('missing_keys', 'unexpected_keys', 'mismatched_keys')), info
assert model.config.dtype == torch.float32
assert torch.equal(model.model.norm.weight, torch.ones(8))
assert 0.01 < model.model.embed_tokens.weight.std() < 0.03
)",
                                 "'" + folder.string() + "'", &output))
        << output;
  }
}
}  // namespace
}  // namespace tandem
