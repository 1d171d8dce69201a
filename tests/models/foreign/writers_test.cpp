// Writers of foreign checkpoints: DeepSpeed's universal form and safetensors, read back by this
// tree and by torch.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/safetensors.hpp"
#include "models/foreign/imported_checkpoint.hpp"
#include "models/io/checkpoint.hpp"
#include "tests/models/foreign/import_support.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/warm_python.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::expect_same_floats;
using test::read_all;

class ImportWriters : public test::WithWarmPython<testing::Test> {
 protected:
  void SetUp() override {
    if (!own_) {
      GTEST_SKIP() << "tar or xz is not installed";
    }
  }
  test::UnpackedCheckpoints own_;
  test::TempDir out_;
};

void expect_same(const ImportedCheckpoint& a, const ImportedCheckpoint& b) {
  EXPECT_EQ(a.tied, b.tied);
  EXPECT_EQ(a.global_steps, b.global_steps);
  EXPECT_EQ(a.skipped_steps, b.skipped_steps);
  EXPECT_EQ(a.optimizer_steps, b.optimizer_steps);
  EXPECT_EQ(a.global_samples, b.global_samples);
  EXPECT_EQ(a.schedule_step, b.schedule_step);
  EXPECT_EQ(a.client_state_json, b.client_state_json);
  EXPECT_EQ(a.ds_config_json, b.ds_config_json);
  EXPECT_EQ(a.tensors.size(), b.tensors.size());
  for (const ImportedTensor& tensor : a.tensors) {
    const ImportedTensor* other = b.find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(tensor.shape, other->shape);
    EXPECT_EQ(tensor.frozen, other->frozen);
    EXPECT_EQ(tensor.buffer, other->buffer);
    expect_same_floats(read_all(other->master, tensor.numel()),
                       read_all(tensor.master, tensor.numel()), tensor.name);
    for (std::size_t m = 0; m < 2; ++m) {
      ASSERT_EQ(static_cast<bool>(tensor.moments[m]), static_cast<bool>(other->moments[m]));
      if (tensor.moments[m]) {
        expect_same_floats(read_all(other->moments[m], tensor.numel()),
                           read_all(tensor.moments[m], tensor.numel()), tensor.name);
      }
    }
  }
}

TEST_F(ImportWriters, AUniversalCheckpointHoldsTheSame) {
  for (const char* name : {"stage0_plain_groups", "stage1_bf16_w2_aligned_frozen",
                           "stage2_fp16_w2_round_robin", "stage3_bf16_w3_tied_frozen"}) {
    SCOPED_TRACE(name);
    const ImportedCheckpoint from = open_foreign_checkpoint(own_.path() / name);
    write_universal(from, out_ / name / "tag");
    const ImportedCheckpoint to = open_foreign_checkpoint(out_ / name);
    EXPECT_EQ(to.kind, "universal");
    expect_same(from, to);
    test::expect_error([&] { write_universal(from, out_ / name / "tag"); }, {"not empty"});
  }
}

constexpr std::string_view kCompare = R"(
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
folder, expected = Path(sys.argv[1]), load_file(sys.argv[2])
names = 0
for path in folder.rglob("*.pt"):
    got = torch.load(path, weights_only=True)
    again = torch.load(path, weights_only=True, mmap=True)
    kind, name = path.stem, path.parent.name
    if f"{kind}.{name}" in expected:
        for tree in (got, again):
            assert torch.equal(tree["param"], expected[f"{kind}.{name}"]), path
            assert tree["param"].data_ptr() % 16 == 0
        names += 1
    if kind == "step":
        assert got == int(sys.argv[3]), got
states = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=True)
assert states["global_steps"] == 4 and states["epoch"] == 2 and states["dp_world_size"] == 2
assert states["ds_config"]["zero_optimization"]["stage"] == 1
assert states["shared_params"] == {"head.weight": "embed.weight"}
assert states["param_shapes"][0]["embed.weight"] == torch.Size([5, 3])
assert torch.equal(states["module"]["layers.1.norm"].float(), expected["fp32.layers.1.norm"])
assert torch.load(folder / "zero/optimizer_state.pt", weights_only=True)["param_groups"][0] == {"params": []}
assert (folder.parent / "latest_universal").read_text() == folder.name
assert names == 12, names
)";

TEST_F(ImportWriters, TorchReadsTheUniversalFilesWithoutExecutingAnything) {
  TANDEM_NEEDS_PYTHON(out_.path(), "torch, safetensors");
  const fs::path source = own_.path() / "stage1_bf16_w2_aligned_frozen";
  const ImportedCheckpoint from = open_foreign_checkpoint(source);
  write_universal(from, out_ / "u/tag");
  std::string log;
  EXPECT_TRUE(test::run_python(
      out_.path(), kCompare,
      fmt::format("'{}' '{}' {}", (out_ / "u/tag").string(),
                  (source / "state_at_save.safetensors").string(), from.optimizer_steps),
      &log))
      << log;
}

TEST_F(ImportWriters, TheStepIsAsTheRunsAdamCountsHoweverItsConfigIsSpaced) {
  TANDEM_NEEDS_PYTHON(out_.path(), "torch");
  ImportedCheckpoint from = open_foreign_checkpoint(own_.path() / "stage1_bf16_w2_aligned_frozen");
  std::string folders;
  for (const auto& [config, type] :
       {std::pair(R"({"optimizer":{"params":{"torch_adam":true}}})", "Tensor"),
        std::pair(R"({"optimizer": {"params": {"torch_adam": true}}})", "Tensor"),
        std::pair(R"({"optimizer":{"params":{"torch_adam":false}}})", "int"),
        std::pair(R"({"torch_adam": true})", "int"), std::pair("null", "int"),
        std::pair("", "int")}) {
    from.ds_config_json = config;
    const fs::path folder = out_ / fmt::format("{}{}", type, std::string_view(config).size());
    write_universal(from, folder / "tag");
    folders += fmt::format(" '{}'", folder.string());
  }
  std::string log;
  EXPECT_TRUE(test::run_python(
      out_.path(),
      "import sys, torch\nfrom pathlib import Path\n"
      "for folder in map(Path, sys.argv[1:]):\n"
      "    steps = [torch.load(path, weights_only=True) for path in folder.rglob('step.pt')]\n"
      "    assert steps and all(folder.name.startswith(type(step).__name__) for step in steps), "
      "folder\n",
      folders, &log))
      << log;
}

TEST_F(ImportWriters, TheNextStepsRateStandsInTheGroups) {
  TANDEM_NEEDS_PYTHON(out_.path(), "torch");
  ImportedCheckpoint from = open_foreign_checkpoint(own_.path() / "stage1_bf16_w2_aligned_frozen");
  from.ds_config_json = R"({"train_batch_size": 4, "optimizer": {"type": "AdamW"}, "scheduler":
      {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.5,
                                      "warmup_num_steps": 10, "warmup_type": "linear"}}})";
  from.schedule_step = 3;  // after 4 steps
  write_universal(from, out_ / "rate/tag");
  from.ds_config_json = R"({"train_batch_size": 4, "optimizer": {"type": "AdamW"}})";
  write_universal(from, out_ / "none/tag");
  std::string log;
  EXPECT_TRUE(test::run_python(
      out_.path(),
      "import sys, torch\n"
      "groups = [torch.load(f'{f}/tag/zero/optimizer_state.pt', "
      "weights_only=True)['param_groups']\n"
      "          for f in sys.argv[1:]]\n"
      "assert all(abs(group['lr'] - 0.15) < 1e-15 for group in groups[0]), groups[0]\n"
      "assert all(group == {'params': []} for group in groups[1]), groups[1]\n",
      fmt::format("'{}' '{}'", (out_ / "rate").string(), (out_ / "none").string()), &log))
      << log;
}

TEST_F(ImportWriters, EveryElementTypeIsWrittenAsItIsAndReadBack) {
  TANDEM_NEEDS_PYTHON(out_.path(), "torch, safetensors");
  const fs::path source = own_.path() / "pytorch_bin/odd";
  ImportedCheckpoint from = open_foreign_checkpoint(source);
  for (ImportedTensor& tensor : from.tensors) {
    tensor.frozen = true;
    tensor.buffer = true;  // as DeepSpeed's stage 3 keeps whole tensors
  }
  write_universal(from, out_ / "u/tag");
  EXPECT_FALSE(fs::exists(out_ / "u/tag/.module"));
  const ImportedCheckpoint back = open_foreign_checkpoint(out_ / "u");
  for (const ImportedTensor& tensor : from.tensors) {
    std::vector<std::byte> wanted(static_cast<std::size_t>(tensor.numel()) * bytes_of(tensor.type));
    std::vector<std::byte> got(wanted.size());
    tensor.stored(0, tensor.numel(), wanted);
    ASSERT_NE(back.find(tensor.name), nullptr) << tensor.name;
    back.find(tensor.name)->stored(0, tensor.numel(), got);
    EXPECT_EQ(got, wanted) << tensor.name;
  }
  std::string log;
  EXPECT_TRUE(test::run_python(
      out_.path(),
      "import sys, torch\nfrom safetensors.torch import load_file\n"
      "a, b = torch.load(sys.argv[1], weights_only=True)['module'], load_file(sys.argv[2])\n"
      "assert len(a) == 11, a\n"
      "bits = lambda t: t.reshape(-1).view(torch.uint8)\n"
      "for n, t in a.items(): assert t.dtype == b[n].dtype and torch.equal(bits(t), bits(b[n])), "
      "n\n",
      fmt::format("'{}' '{}'", (out_ / "u/tag/mp_rank_00_model_states.pt").string(),
                  (source / "weights.safetensors").string()),
      &log))
      << log;
}

TEST_F(ImportWriters, SafetensorsKeepTypesOrTakeOne) {
  const ImportedCheckpoint odd = open_foreign_checkpoint(own_.path() / "pytorch_bin/odd");
  write_hugging_face(odd, out_ / "odd", std::nullopt);
  const SafetensorsFile wanted =
      SafetensorsFile::open(own_.path() / "pytorch_bin/odd/weights.safetensors");
  const SafetensorsFile got = SafetensorsFile::open(out_ / "odd/model.safetensors");
  EXPECT_EQ(got.tensors().size(), wanted.tensors().size());
  for (const TensorInfo& info : got.tensors()) {
    const TensorInfo& other = wanted.at(info.name);
    EXPECT_EQ(info.type, other.type) << info.name;
    EXPECT_EQ(info.shape, other.shape) << info.name;
    EXPECT_TRUE(std::ranges::equal(got.bytes(info), wanted.bytes(other))) << info.name;
  }
  write_hugging_face(odd, out_ / "bf16", TensorType::kBF16);
  const SafetensorsFile bf16 = SafetensorsFile::open(out_ / "bf16/model.safetensors");
  EXPECT_EQ(bf16.at("f64").type, TensorType::kBF16);
  EXPECT_EQ(bf16.at("i64").type, TensorType::kI64);

  const ImportedCheckpoint trained =
      open_foreign_checkpoint(own_.path() / "stage3_bf16_w3_tied_frozen");
  write_hugging_face(trained, out_ / "trained", TensorType::kF32);
  const Checkpoint model = Checkpoint::open(out_ / "trained");
  EXPECT_EQ(model.find("head.weight"), nullptr) << "tied: it is the embedding";
  std::vector<float> values(15);
  model.read_f32("embed.weight", 0, 15, values.data());
  expect_same_floats(values, read_all(trained.find("embed.weight")->master, 15), "embed.weight");
}

}  // namespace
}  // namespace tandem
