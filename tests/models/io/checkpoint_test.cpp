// Checkpoints: index and shards must agree, the writer leaves whole files or none, tensors match
// the config.
#include "models/io/checkpoint.hpp"

#include <csignal>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "models/io/checkpoint_layout.hpp"
#include "models/io/checkpoint_writer.hpp"
#include "models/io/json.hpp"
#include "models/io/random_init.hpp"
#include "tests/models/io/io_support.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TempDir;
namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";

std::vector<TensorPlan> three_tensors(TensorType type = TensorType::kF32) {
  return {{"a", type, {4, 2}}, {"b", type, {3}}, {"c", type, {2, 2, 2}}};
}

void write_three(const fs::path& folder, std::uint64_t max_shard_bytes,
                 TensorType type = TensorType::kF32) {
  CheckpointWriter writer(folder, three_tensors(type), {.max_shard_bytes = max_shard_bytes});
  float next = 0;
  while (const TensorPlan* tensor = writer.current()) {
    std::vector<float> values(static_cast<std::size_t>(tensor->numel()));
    for (float& value : values) {
      value = next++;
    }
    writer.append_f32(values);
  }
  writer.finish();
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<float> read(const Checkpoint& checkpoint, std::string_view name) {
  std::vector<float> out(static_cast<std::size_t>(checkpoint.at(name).numel()));
  checkpoint.read_f32(name, 0, static_cast<std::int64_t>(out.size()), out.data());
  return out;
}

void edit(const fs::path& path, std::string_view from, std::string_view to) {
  std::string text = test::get(path);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  test::put(path, text.replace(at, from.size(), to));
}

TEST(IoCheckpoint, ComesBackFromOneFileAndFromShards) {
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16, TensorType::kF16}) {
    for (const std::uint64_t shard_bytes : {0u, 16u, 1u}) {
      const TempDir dir;
      write_three(dir.path(), shard_bytes, type);
      const Checkpoint checkpoint = Checkpoint::open(dir.path());
      EXPECT_EQ(checkpoint.files().size(), shard_bytes == 0 ? 1u : 3u);
      EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
      EXPECT_EQ(checkpoint.at("a").type, type);
      EXPECT_EQ(checkpoint.at("c").shape, (std::vector<std::int64_t>{2, 2, 2}));
      EXPECT_EQ(read(checkpoint, "b"), (std::vector<float>{8, 9, 10}));
      EXPECT_EQ(read(checkpoint, "c").back(), 18);
      EXPECT_EQ(checkpoint.bytes("b").size(), 3 * bytes_of(type));
    }
  }
}

TEST(IoCheckpoint, WritesNamesThatNeedEscapes) {
  const TempDir dir;
  const std::string name = "we\"ird\\n\u00e4me\n";
  CheckpointWriter writer(dir.path(),
                          {{name, TensorType::kF32, {1}}, {"empty", TensorType::kF32, {0}}});
  writer.append_f32(std::vector<float>{7});
  EXPECT_EQ(writer.current(), nullptr);
  writer.finish();
  EXPECT_EQ(read(Checkpoint::open(dir.path()), name), std::vector<float>{7});
}

TEST(IoCheckpoint, ReplacesAnOlderCheckpointWhole) {
  const TempDir dir;
  write_three(dir.path(), 16);
  ASSERT_EQ(files_in(dir.path()).size(), 4u);
  write_three(dir.path(), 0);
  EXPECT_EQ(files_in(dir.path()), std::vector<std::string>{"model.safetensors"});
  write_three(dir.path(), 45);
  EXPECT_EQ(files_in(dir.path()),
            (std::vector<std::string>{"model-00001-of-00002.safetensors",
                                      "model-00002-of-00002.safetensors", std::string(kIndex)}));
  EXPECT_EQ(read(Checkpoint::open(dir.path()), "b"), (std::vector<float>{8, 9, 10}));
}

TEST(IoCheckpoint, AnUnfinishedWriterLeavesTheFolderAsItWas) {
  const TempDir dir;
  write_three(dir.path(), 0);
  const std::string before = test::get(dir / "model.safetensors");
  {
    CheckpointWriter writer(dir.path(), three_tensors());
    writer.append_f32(std::vector<float>(8, 99.0F));
  }
  EXPECT_EQ(files_in(dir.path()), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(test::get(dir / "model.safetensors"), before);
}

/// While it lives, no file may grow beyond `bytes` (EFBIG): a disk that fills up.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(IoCheckpoint, AFullDiskLeavesNothingAndTheOldFileUntouched) {
  const TempDir dir;
  write_three(dir.path(), 0);
  const std::string before = test::get(dir / "model.safetensors");
  const std::vector<TensorPlan> big = {{"a", TensorType::kF32, {1 << 16}}};
  {
    const FileSizeLimit limit(100'000);
    CheckpointWriter writer(dir.path(), big);
    expect_error(
        [&] { writer.append_f32(std::vector<float>(1 << 16, 1.0F)); },
        {"[save model]", "cannot write", "model.safetensors", "File too large", "free space"},
        ExitCode::kFailure);
    AtomicFile file(dir / "model.safetensors", "save model");
    const std::string part(60'000, 'x');
    file.append(part);
    expect_error([&] { file.append(part); },
                 {"cannot write", "model.safetensors", "File too large"}, ExitCode::kFailure);
  }
  EXPECT_EQ(files_in(dir.path()), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(test::get(dir / "model.safetensors"), before);
}

TEST(IoCheckpoint, ADiskWithoutRoomIsNoticedBeforeAnythingIsWritten) {
  const TempDir dir;
  if (::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "mounting a small file system needs more rights";
  }
  const std::vector<TensorPlan> big = {{"a", TensorType::kF32, {1 << 16}}};
  expect_error([&] { CheckpointWriter writer(dir.path(), big); },
               {"[save model]", "cannot reserve space for", "model.safetensors", "No space left"},
               ExitCode::kFailure);
  EXPECT_TRUE(files_in(dir.path()).empty());
  ::umount(dir.path().c_str());
}

TEST(IoCheckpoint, RefusesAFolderThatCannotBeWritten) {
  const TempDir dir;
  test::put(dir / "file", "x");
  expect_error([&] { CheckpointWriter writer(dir / "file", three_tensors()); },
               {"[save model]", "file", "choose another output folder"});
  expect_error([&] { CheckpointWriter writer(dir / "file/below", three_tensors()); },
               {"choose another output folder"});
}

TEST(IoCheckpoint, RefusesFoldersWithoutWeights) {
  const TempDir dir;
  expect_error([&] { (void)Checkpoint::open(dir.path()); },
               {"neither model.safetensors nor model.safetensors.index.json"});
  test::put(dir / "pytorch_model.bin", "x");
  expect_error([&] { (void)Checkpoint::open(dir.path()); },
               {"pytorch_model.bin", "pickle files are never read", "safe_serialization"});
  expect_error([&] { (void)Checkpoint::open(dir / "none"); }, {"is not a folder"});
}

TEST(IoCheckpoint, RefusesIndexesThatLeaveTheFolder) {
  for (const char* name :
       {"../model-00001-of-00003.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "",
        ".hidden.safetensors", "a\\\\b.safetensors", "model.bin"}) {
    SCOPED_TRACE(name);
    const TempDir dir;
    write_three(dir.path(), 16);
    edit(dir / kIndex, "model-00001-of-00003.safetensors", name);
    expect_error([&] { (void)Checkpoint::open(dir.path()); },
                 {"[checkpoint]", kIndex, "$.weight_map.a", "plain name"});
  }
}

TEST(IoCheckpoint, RefusesIndexesThatDisagreeWithTheShards) {
  const auto with = [](auto&& change, std::initializer_list<std::string_view> expected) {
    const TempDir dir;
    write_three(dir.path(), 16);
    change(dir);
    expect_error([&] { (void)Checkpoint::open(dir.path()); }, expected);
  };
  with([](const TempDir& dir) { fs::remove(dir / "model-00002-of-00003.safetensors"); },
       {"model-00002-of-00003.safetensors", "not there"});
  with([](const TempDir& dir) { edit(dir / kIndex, "\"a\"", "\"z\""); },
       {"tensor \"z\"", "does not hold it"});
  with(
      [](const TempDir& dir) {
        edit(dir / kIndex, "\"a\": \"model-00001", "\"a\": \"model-00002");
      },
      {"model-00001-of-00003.safetensors", "does not name it"});
  with([](const TempDir& dir) { edit(dir / kIndex, "total_size\": 76", "total_size\": 77"); },
       {"total_size is 77", "76 bytes"});
  with(
      [](const TempDir& dir) {
        fs::copy_file(dir / "model-00001-of-00003.safetensors",
                      dir / "model-00002-of-00003.safetensors",
                      fs::copy_options::overwrite_existing);
      },
      {"\"a\" is in", "model-00002-of-00003.safetensors"});
  with(
      [](const TempDir& dir) {
        edit(dir / kIndex, "\"a\": \"model-00001-of-00003.safetensors\",", "");
      },
      {"model-00001-of-00003.safetensors", "the index does not name it"});
  with([](const TempDir& dir) { test::put(dir / kIndex, R"({"weight_map": {}})"); },
       {"names no tensor"});
  with([](const TempDir& dir) { test::put(dir / kIndex, R"({"weight_map": {"a": 1}})"); },
       {"$.weight_map.a is 1", "a string is needed"});
  with([](const TempDir& dir) { test::put(dir / kIndex, "{}"); }, {"\"weight_map\" is missing"});
  with(
      [](const TempDir& dir) {
        test::put(dir / kIndex, R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})");
      },
      {"\"a\" occurs twice"});
  with([](const TempDir& dir) { fs::resize_file(dir / "model-00003-of-00003.safetensors", 60); },
       {"model-00003-of-00003.safetensors", "truncated"});
}

HfConfig small_qwen3(bool tied) {
  return parse_hf_config(
      fmt::format(
          R"({{"model_type": "qwen3", "hidden_act": "silu", "vocab_size": 11, "hidden_size": 8,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
      "intermediate_size": 10, "max_position_embeddings": 32, "tie_word_embeddings": {}}})",
          tied),
      "config.json");
}

void write_fresh(const fs::path& folder, const HfConfig& config,
                 const std::vector<TensorPlan>& plan) {
  CheckpointWriter writer(folder, plan);
  while (const TensorPlan* tensor = writer.current()) {
    writer.append_f32(std::vector<float>(static_cast<std::size_t>(tensor->numel()), 0.5F));
  }
  writer.finish();
}

TEST(IoLayout, ListsEveryTensorOfTheReferenceModels) {
  TANDEM_NEEDS_SHARED("oracles/models");
  for (const char* name : {"qwen3", "qwen3_tied", "gpt2"}) {
    const fs::path folder = test::shared("oracles/models") / name / "checkpoint";
    const HfConfig config = read_hf_config(folder);
    const CheckpointReader reader = CheckpointReader::open(folder, config);
    std::vector<std::string> names;
    for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
      names.push_back(tensor.name);
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, reader.checkpoint().names());
    EXPECT_EQ(reader.stored_type(), TensorType::kF32);
  }
}

TEST(IoLayout, ReadsGpt2InTheLayoutOfTheHub) {
  TANDEM_NEEDS_SHARED("oracles/models/gpt2");
  const fs::path folder = test::shared("oracles/models/gpt2");
  const HfConfig config = read_hf_config(folder / "checkpoint");
  const CheckpointReader ours = CheckpointReader::open(folder / "checkpoint", config);
  const CheckpointReader hub = CheckpointReader::open(folder / "checkpoint_hub_layout", config);
  for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
    std::vector<float> a(static_cast<std::size_t>(tensor.numel()));
    std::vector<float> b(a.size(), -1.0F);
    ours.read_f32(tensor.name, 0, tensor.numel(), a.data());
    hub.read_f32(tensor.name, 0, tensor.numel(), b.data());
    EXPECT_EQ(a, b) << tensor.name;
  }
}

TEST(IoLayout, CountsPublishedModels) {
  TANDEM_NEEDS_SHARED("data/model_configs");
  const fs::path folder = test::shared("data/model_configs");
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
       {"\"model.layers.0.self_attn.q_proj.weight\" has shape [8, 12]", "asks for [12, 8]"});
  with(
      [](auto& plan) {
        plan.push_back({"model.layers.2.mlp.up_proj.weight", TensorType::kF32, {1}});
      },
      {"\"model.layers.2.mlp.up_proj.weight\" [1]", "does not have"});
  with([](auto& plan) { plan.pop_back(); }, {"\"lm_head.weight\"", "[11, 8]"});
}

TEST(IoLayout, RefusesWeightsThatAreNoFloats) {
  const HfConfig config = small_qwen3(true);
  const TempDir dir;
  std::vector<TensorPlan> plan = checkpoint_plan(config, TensorType::kI32);
  CheckpointWriter writer(dir.path(), plan);
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
  EXPECT_EQ(CheckpointReader::open(dir.path(), config).stored_type(), TensorType::kBF16);
}

TEST(IoCheckpoint, PythonReadsWhatWeWrite) {
  const TempDir dir;
  TANDEM_NEEDS_PYTHON(dir.path(), "torch, safetensors");
  write_three(dir / "one", 0, TensorType::kBF16);
  write_three(dir / "many", 16, TensorType::kF32);
  std::string output;
  EXPECT_TRUE(test::run_python(dir.path(), R"(
import json, sys
from safetensors import safe_open
folder = sys.argv[1]
with safe_open(folder + '/one/model.safetensors', 'pt') as f:
    assert f.metadata() == {'format': 'pt'}, f.metadata()
    assert f.get_tensor('c').float().flatten().tolist() == [11.0 + i for i in range(8)]
    assert list(f.get_tensor('a').shape) == [4, 2] and str(f.get_tensor('a').dtype) == 'torch.bfloat16'
index = json.load(open(folder + '/many/model.safetensors.index.json'))
assert index['metadata']['total_size'] == 76
for name, file in index['weight_map'].items():
    with safe_open(folder + '/many/' + file, 'pt') as f:
        assert list(f.keys()) == [name]
)",
                               "'" + dir.path().string() + "'", &output))
      << output;
}

TEST(IoLayout, TransformersLoadsWhatWeWrite) {
  const TempDir dir;
  TANDEM_NEEDS_PYTHON(dir.path(), "torch, transformers");
  for (const std::uint64_t shard_bytes : {std::uint64_t{0}, std::uint64_t{2000}}) {
    const HfConfig config = small_qwen3(true);
    const fs::path folder = dir / ("model" + std::to_string(shard_bytes));
    CheckpointWriter writer(folder, checkpoint_plan(config, TensorType::kF32),
                            {.max_shard_bytes = shard_bytes});
    for (const CheckpointTensor& tensor : checkpoint_tensors(config)) {
      std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
      fill_initial(tensor, 7, 0.02, 0, tensor.numel(), values.data());
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
