// Checkpoints that DeepSpeed and torch wrote, against the values that these programs held: every
// master and moment, bit for bit.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/json.hpp"
#include "actors/storage/safetensors.hpp"
#include "models/foreign/imported_checkpoint.hpp"
#include "tests/models/foreign/import_support.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/warm_python.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::expect_same_floats;
using test::read_all;

constexpr std::size_t kNone = std::string_view::npos;

JsonDocument json_file(const fs::path& path) {
  return JsonDocument::load(path, {.where = "test", .advice = "make it anew"}, 1 << 26);
}

void expect_state(const ImportedCheckpoint& checkpoint, const SafetensorsFile& expected) {
  std::size_t found = 0;
  for (const TensorInfo& info : expected.tensors()) {
    const std::size_t dot = info.name.find('.');
    const std::string kind = info.name.substr(0, dot);
    std::string name = info.name.substr(dot + 1);
    if (const auto tied = checkpoint.tied.find(name); tied != checkpoint.tied.end()) {
      name = tied->second;
    }
    const ImportedTensor* tensor = checkpoint.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->shape, info.shape) << name;
    const ImportedTensor::ReadF32& read = kind == "fp32"      ? tensor->master
                                          : kind == "exp_avg" ? tensor->moments[0]
                                                              : tensor->moments[1];
    ASSERT_TRUE(read) << info.name;
    std::vector<float> wanted(static_cast<std::size_t>(info.numel()));
    expected.read_f32(info, 0, info.numel(), wanted.data());
    expect_same_floats(read_all(read, info.numel()), wanted, info.name);
    ++found;
  }
  EXPECT_EQ(found, expected.tensors().size());
  std::set<std::string> trained;
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    EXPECT_TRUE(tensor.frozen == !tensor.moments[0] || !checkpoint.notes.empty()) << tensor.name;
    EXPECT_TRUE(expected.find("fp32." + tensor.name) != nullptr || tensor.frozen) << tensor.name;
  }
}

std::vector<std::pair<std::string_view, JsonValue>> members_of(const JsonValue& record,
                                                               std::string_view key) {
  const auto value = record.find(key);
  return value && value->is_object() ? value->members()
                                     : std::vector<std::pair<std::string_view, JsonValue>>{};
}

void expect_record(const ImportedCheckpoint& checkpoint, const JsonValue& record) {
  if (const auto steps = record.find("global_steps")) {
    EXPECT_EQ(checkpoint.global_steps, steps->integer());
    EXPECT_EQ(checkpoint.global_samples, record.at("global_samples").integer());
    EXPECT_EQ(checkpoint.skipped_steps, record.at("skipped_steps").integer());
    EXPECT_EQ(checkpoint.world_size, record.at("world_size").integer());
    for (const auto& [alias, name] : members_of(record, "tied")) {
      EXPECT_EQ(checkpoint.tied.at(std::string(alias)), name.string());
    }
    if (const auto scaler = record.find("scaler")) {
      ASSERT_TRUE(checkpoint.scaler);
      EXPECT_EQ(checkpoint.scaler->step, scaler->at("iteration").integer());
      EXPECT_EQ(checkpoint.scaler->last_overflow, scaler->at("last_overflow").integer());
      EXPECT_EQ(checkpoint.scaler->hysteresis, scaler->at("hysteresis").integer());
    }
    const auto scale =
        record.find("scaler") ? record.at("scaler").find("scale") : record.find("loss_scale");
    EXPECT_EQ(checkpoint.scaler ? checkpoint.scaler->scale : 1.0, scale ? scale->number() : 1.0);
    const auto config = record.find("config");
    const std::int64_t stage = config ? config->at("zero_optimization").at("stage").integer()
                                      : record.at("zero_stage").integer();
    EXPECT_EQ(checkpoint.zero_stage, stage);
    const bool early_step = stage == 0 && record.at("dtype").string().find("16") != kNone;
    EXPECT_EQ(checkpoint.optimizer_steps,
              checkpoint.global_steps - checkpoint.skipped_steps + (early_step ? 1 : 0));
    if (const auto schedule = record.find("scheduler_at_save")) {
      EXPECT_EQ(checkpoint.schedule_step, schedule->at("last_batch_iteration").integer());
    }
  }
  const JsonDocument state = JsonDocument::parse(
      checkpoint.client_state_json, {.where = "test", .file = "client state", .advice = "none"});
  EXPECT_EQ(state.root().at("note").string(), "oracle");
  EXPECT_EQ(state.root().at("epoch").integer(), 2);
  const auto notes = record.find("notes");
  EXPECT_EQ(checkpoint.notes.size(), notes ? notes->integer() : 0)
      << (checkpoint.notes.empty() ? "" : checkpoint.notes.front());
}

void expect_cases(const fs::path& in) {
  const std::vector<fs::path> folders = test::recorded_checkpoints(in);
  EXPECT_GE(folders.size(), 3U) << in;
  for (const fs::path& folder : folders) {
    SCOPED_TRACE(folder.filename().string());
    ASSERT_TRUE(is_foreign_checkpoint(folder));
    const ImportedCheckpoint checkpoint = open_foreign_checkpoint(folder);
    const JsonDocument record = json_file(folder / "record.json");
    fs::path state = folder / "state_at_save.safetensors";
    if (const auto source = record.root().find("source")) {  // a universal checkpoint of another
      EXPECT_EQ(checkpoint.kind, "universal");
      state = folder / source->string() / "state_at_save.safetensors";
    }
    expect_state(checkpoint, SafetensorsFile::open(state));
    expect_record(checkpoint, record.root());
  }
}

class ImportGolden : public test::WithWarmPython<testing::Test> {};

TEST_F(ImportGolden, EveryMasterAndMomentBitForBit) {
  for (const fs::path& folder : test::deepspeed_checkpoints()) {
    expect_cases(folder);
  }
}

TEST_F(ImportGolden, OurOwnOfEveryLayout) {
  const test::UnpackedCheckpoints own;
  if (!own) {
    GTEST_SKIP() << "tar or xz is not installed";
  }
  expect_cases(own.path());
}

TEST_F(ImportGolden, TheFolderOfATagIsACheckpointToo) {
  const fs::path folder = test::own_reference("deepspeed/stage1_fp32_w2");
  const ImportedCheckpoint a = open_foreign_checkpoint(folder);
  const ImportedCheckpoint b = open_foreign_checkpoint(folder / "global_step4");
  EXPECT_EQ(a.path, b.path);
  EXPECT_EQ(a.tensors.size(), b.tensors.size());
}

/// pytorch_model.bin against the safetensors that hold the same weights.
void expect_weights(const fs::path& path, const fs::path& weights) {
  SCOPED_TRACE(path.string());
  const ImportedCheckpoint checkpoint = open_foreign_checkpoint(path);
  const SafetensorsFile expected = SafetensorsFile::open(weights);
  EXPECT_EQ(checkpoint.kind, "pytorch");
  EXPECT_EQ(checkpoint.tensors.size(), expected.tensors().size());
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    const TensorInfo* info = expected.find(tensor.name);
    ASSERT_NE(info, nullptr) << tensor.name;
    EXPECT_EQ(tensor.shape, info->shape);
    if (info->type == tensor.type && tensor.stored) {
      std::vector<std::byte> bytes(info->size_bytes);
      tensor.stored(0, tensor.numel(), bytes);
      const auto wanted = expected.bytes(*info);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end()))
          << tensor.name;
      continue;
    }
    std::vector<float> wanted(static_cast<std::size_t>(info->numel()));
    expected.read_f32(*info, 0, info->numel(), wanted.data());
    if (tensor.type != TensorType::kF32) {  // the reference holds the unrounded weights
      std::vector<std::byte> rounded(wanted.size() * bytes_of(tensor.type));
      convert_from_f32(tensor.type, wanted, rounded);
      convert_to_f32(tensor.type, rounded, wanted);
    }
    expect_same_floats(read_all(tensor.master, info->numel()), wanted, tensor.name);
  }
}

void expect_files_of_torch(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder / "pytorch_bin")) {
    const fs::path own = entry.path() / "tensors.safetensors";
    if (fs::exists(own)) {
      expect_weights(entry.path() / "tensors.bin", own);
    } else if (fs::is_directory(entry.path())) {
      const bool tied = entry.path().filename().string().starts_with("tied");
      expect_weights(entry.path(),
                     folder / (tied ? "checkpoint_tied" : "checkpoint") / "model.safetensors");
    }
  }
}

TEST_F(ImportGolden, PytorchModelBin) {
  for (const fs::path& folder : test::references({"deepspeed"}, {"oracles/ds_ckpt"})) {
    expect_files_of_torch(folder);
  }
}

TEST_F(ImportGolden, OurOwnPytorchModelBin) {
  const test::UnpackedCheckpoints own;
  if (!own) {
    GTEST_SKIP() << "tar or xz is not installed";
  }
  int files = 0;
  for (const auto& entry : fs::directory_iterator(own.path() / "pytorch_bin")) {
    expect_weights(entry.path(), entry.path() / "weights.safetensors");
    ++files;
  }
  EXPECT_EQ(files, 6);
}

void expect_hostile_files_are_refused(const fs::path& folder) {
  std::set<std::string> either;
  if (fs::exists(folder / "index.json")) {
    const JsonDocument index = json_file(folder / "index.json");
    for (const auto& [name, value] : index.root().members()) {
      if (value.text().find("may be read") != std::string::npos) {
        either.emplace(name);
      }
    }
  }
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") {
      continue;
    }
    ++files;
    SCOPED_TRACE(entry.path().filename().string());
    if (either.contains(entry.path().filename().string())) {
      try {
        (void)open_foreign_checkpoint(entry.path());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kUserInput);
      }
      continue;
    }
    test::expect_error([&] { (void)test::read_whole(entry.path()); },
                       {"[import]", entry.path().filename().string()});
  }
  EXPECT_GE(files, 5);
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("PWNED_")) << entry.path();
  }
}

TEST_F(ImportGolden, HostileFilesAreRefused) {
  for (const fs::path& folder :
       test::references({"deepspeed/hostile"}, {"oracles/ds_ckpt/hostile"})) {
    expect_hostile_files_are_refused(folder);
  }
}

}  // namespace
}  // namespace tandem
