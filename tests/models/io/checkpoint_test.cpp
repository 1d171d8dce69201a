// Checkpoints: index and shards must agree, the writer leaves whole files or none.
#include "models/io/checkpoint.hpp"

#include <limits>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "actors/storage/json.hpp"
#include "models/io/weights_writer.hpp"
#include "tests/support/faults/file_size_limit.hpp"
#include "tests/support/io_support.hpp"

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
  WeightsWriter writer(folder, three_tensors(type), {.max_shard_bytes = max_shard_bytes});
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

TEST(IoCheckpoint, RefusesWeightsBeyondTheirType) {
  const auto write = [](TensorType type, float value) {
    const TempDir dir;
    WeightsWriter writer(dir.path(), {{"big", type, {2}}});
    writer.append_f32(std::vector<float>{1, value});
    writer.finish();
  };
  write(TensorType::kF16, 65519);  // rounds to the largest
  write(TensorType::kBF16, 65520);
  expect_error([&] { write(TensorType::kF16, -65520); },
               {"big has the value -65520, which is infinite in fp16"}, ExitCode::kBadState);
  expect_error([&] { write(TensorType::kBF16, std::numeric_limits<float>::max()); },
               {"infinite in bf16"}, ExitCode::kBadState);
}

TEST(IoCheckpoint, WritesNamesThatNeedEscapes) {
  const TempDir dir;
  const std::string name = "we\"ird\\n\u00e4me\n";
  WeightsWriter writer(dir.path(),
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
    WeightsWriter writer(dir.path(), three_tensors());
    writer.append_f32(std::vector<float>(8, 99.0F));
  }
  EXPECT_EQ(files_in(dir.path()), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(test::get(dir / "model.safetensors"), before);
}

TEST(IoCheckpoint, AFullDiskLeavesNothingAndTheOldFileUntouched) {
  const TempDir dir;
  write_three(dir.path(), 0);
  const std::string before = test::get(dir / "model.safetensors");
  const std::vector<TensorPlan> big = {{"a", TensorType::kF32, {1 << 16}}};
  {
    const test::FileSizeLimit limit(100'000);
    WeightsWriter writer(dir.path(), big);
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
  expect_error([&] { WeightsWriter writer(dir.path(), big); },
               {"[save model]", "cannot reserve space for", "model.safetensors", "No space left"},
               ExitCode::kFailure);
  EXPECT_TRUE(files_in(dir.path()).empty());
  ::umount(dir.path().c_str());
}

TEST(IoCheckpoint, RefusesAFolderThatCannotBeWritten) {
  const TempDir dir;
  test::put(dir / "file", "x");
  expect_error([&] { WeightsWriter writer(dir / "file", three_tensors()); },
               {"[save model]", "file", "choose another output folder"});
  expect_error([&] { WeightsWriter writer(dir / "file/below", three_tensors()); },
               {"choose another output folder"});
}

TEST(IoCheckpoint, RefusesFoldersWithoutWeights) {
  const TempDir dir;
  expect_error([&] { (void)Checkpoint::open(dir.path()); },
               {"neither model.safetensors nor model.safetensors.index.json"});
  test::put(dir / "pytorch_model.bin", "x");
  expect_error([&] { (void)Checkpoint::open(dir.path()); },
               {"pytorch_model.bin", "pickle files", "tandem convert"});
  expect_error([&] { (void)Checkpoint::open(dir / "none"); }, {"is not a folder"});
}

/// The names in a folder say what it is, and the error says how to go on.
TEST(IoCheckpoint, TellsWhatAFolderWithoutWeightsIs) {
  struct Case {
    const char* name;
    std::vector<std::string_view> parts;
  };
  const std::vector<Case> cases = {
      {"model-00001-of-00002.safetensors", {"no model.safetensors.index.json", "download"}},
      {"weights.safetensors", {"no name of a model's weights", "model.safetensors"}},
      {"consolidated.safetensors", {"Mistral publishes", "form of Transformers"}},
      {"consolidated.00.pth", {"Meta publishes"}},
      {"model.safetensors.incomplete", {"has not ended", "download it again"}},
      {"tf_model.h5", {"another library", "save_pretrained"}},
      {"flax_model.msgpack", {"another library"}},
      {"last.ckpt", {"another library"}},
      {"model.onnx", {"another library"}},
      {"latest_checkpointed_iteration.txt", {"Megatron"}},
      {"checkpoint-500/model.safetensors", {"has the weights", "checkpoint-500"}},
      {"global_step10/mp_rank_00_model_states.pt", {"DeepSpeed", "tandem convert"}},
      {"pytorch_model_fsdp_0/__0_0.distcp", {"FSDP", "merge-weights"}},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    std::filesystem::create_directories((dir / c.name).parent_path());
    test::put(dir / c.name, "x");
    test::put(dir / "config.json", "{}");
    try {
      (void)Checkpoint::open(dir.path());
      ADD_FAILURE() << c.name;
    } catch (const Error& error) {
      for (const std::string_view part : c.parts) {
        EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
            << c.name << ": " << error.what();
      }
    }
  }
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
  with(
      [](const TempDir& dir) {
        WeightsWriter writer(dir / "other", {{"a", TensorType::kF32, {4, 2}}});
        writer.append_f32(std::vector<float>(8, 99.0F));
        writer.finish();
        fs::copy_file(dir / "other/model.safetensors", dir / "model-00002-of-00003.safetensors",
                      fs::copy_options::overwrite_existing);
      },
      {"\"a\" has one value in", "model-00002-of-00003.safetensors"});
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

// No other reader of such files compares the index with the shards' contents.
TEST(IoCheckpoint, NotesWhereTheIndexAndTheShardsDiffer) {
  const auto with = [](auto&& change, std::string_view expected) {
    const TempDir dir;
    write_three(dir.path(), 16);
    change(dir);
    const Checkpoint checkpoint = Checkpoint::open(dir.path());
    EXPECT_EQ(read(checkpoint, "b"), (std::vector<float>{8, 9, 10}));
    const std::string notes = fmt::format("{}", fmt::join(checkpoint.notes(), "; "));
    EXPECT_NE(notes.find(expected), std::string::npos) << expected << " in " << notes;
  };
  with([](const TempDir& dir) { edit(dir / kIndex, "\"a\"", "\"z\""); }, "no shard holds (1");
  with([](const TempDir& dir) { edit(dir / kIndex, "\"a\"", "\"z\""); }, "does not name tensors");
  with(
      [](const TempDir& dir) {
        edit(dir / kIndex, "\"a\": \"model-00001", "\"a\": \"model-00002");
      },
      "does not name it; it is not read");
  with([](const TempDir& dir) { edit(dir / kIndex, "total_size\": 76", "total_size\": 77"); }, "");
  with(
      [](const TempDir& dir) {
        fs::copy_file(dir / "model-00001-of-00003.safetensors", dir / "model-extra.safetensors");
        edit(dir / kIndex, "{\n    \"a\"",
             "{\n    \"a2\": \"model-extra.safetensors\",\n    \"a\"");
      },
      "with the same value");
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

}  // namespace
}  // namespace tandem
