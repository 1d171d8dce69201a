// `tandem checkpoint` finds every flipped bit and names where it is; `tandem convert` changes the
// form of a checkpoint and none of its values.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "actors/storage/manifest.hpp"
#include "actors/storage/safetensors.hpp"
#include "tests/data/references.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/process/warm_python.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Name of an array and of a tensor -> its bytes.
using Tensors = std::map<std::pair<std::string, std::string>, std::string>;

class CheckpointCli : public TrainerTest {
 protected:
  [[nodiscard]] Finished tandem(const std::string& arguments) const {
    return shell(fmt::format("'{}/tandem' {}", test::bin_dir(), arguments));
  }
  [[nodiscard]] Finished run(const std::string& output, int steps, const std::string& more) const {
    return train(
        fmt::format("--output_dir '{}' --batch_size 2 --max_length 48 --steps {} --progress lines "
                    "--log_interval 1 --no-samples --no-tensorboard {}",
                    path(output), steps, more));
  }
  /// A run's checkpoints of its steps 1 and 2; the folder of the second.
  [[nodiscard]] std::string saved() const {
    const Finished done = run("run", 2, "--save_every 1");
    EXPECT_EQ(done.code, 0) << done.err;
    return path("run/checkpoints/step-00000002");
  }
  [[nodiscard]] Finished convert(const std::string& source, const std::string& target,
                                 const std::string& more) const {
    return tandem(fmt::format("convert '{}' '{}' {}", source, path(target), more));
  }

  static void expect_one_line(const Finished& done, const std::vector<std::string>& parts) {
    EXPECT_EQ(done.code, 2) << done.out << done.err;
    EXPECT_THAT(done.err, StartsWith("error: ["));
    EXPECT_EQ(std::ranges::count(done.err, '\n'), 1) << done.err;
    for (const std::string& part : parts) {
      EXPECT_THAT(done.err, HasSubstr(part));
    }
  }

  static void flip_bit(const fs::path& file, std::uint64_t at) {
    std::string bytes = content_of(file);
    ASSERT_LT(at, bytes.size());
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    std::ofstream(file, std::ios::binary) << bytes;
  }

  static Tensors tensors_of(const fs::path& folder) {
    Tensors tensors;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".safetensors")) {
        continue;
      }
      const SafetensorsFile file = SafetensorsFile::open(entry.path());
      for (const TensorInfo& tensor : file.tensors()) {
        const auto bytes = file.bytes(tensor);
        tensors[{name.substr(0, name.find('-')), tensor.name}] =
            std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
    }
    return tensors;
  }

  /// Nothing but these stands in the test's folder.
  void expect_no_leftovers() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_EQ(entry.path().filename().string().find(".tmp-"), std::string::npos) << entry.path();
    }
  }
};

TEST_F(CheckpointCli, ShowsWhatWasSaved) {
  const std::string newest = saved();
  for (const std::string& folder : {newest, path("run"), path("run/checkpoints")}) {
    const Finished shown = tandem(fmt::format("checkpoint show '{}' --json", folder));
    ASSERT_EQ(shown.code, 0) << shown.err;
    simdjson::dom::parser parser;
    const simdjson::dom::element json = parser.parse(shown.out);
    EXPECT_EQ(std::int64_t(json["step"]), 2);
    EXPECT_EQ(std::int64_t(json["world_size"]), 1);
    EXPECT_EQ(std::int64_t(json["next_micro_batch"]), 2);
    EXPECT_EQ(std::string_view(json["seed"]), "42");
    EXPECT_FALSE(std::string_view(json["data_fingerprint"]).empty());
    EXPECT_TRUE(json["loss_scale"].is_null());
    EXPECT_EQ(json["arrays"].get_array().size(), 3U);
    EXPECT_EQ(std::int64_t(json["arrays"].at(0)["elements"]), std::int64_t(json["parameters"]));
    for (const simdjson::dom::element file : json["files"]) {
      EXPECT_EQ(fs::file_size(fs::path(newest) / std::string_view(file["name"])),
                std::uint64_t(file["bytes"]));
    }
  }
  const Finished text = tandem(fmt::format("checkpoint show '{}'", path("run")));
  EXPECT_EQ(text.code, 0);
  for (const char* part : {"step-00000002", "exp_avg_sq", "ZeRO stage", "seed 42"}) {
    EXPECT_THAT(text.out, HasSubstr(part));
  }
  expect_one_line(tandem(fmt::format("checkpoint show '{}'", path("nowhere"))), {"nowhere"});
  expect_one_line(tandem(fmt::format("checkpoint show '{}'", kDemo)), {"manifest.json"});
}

// One host's part of a later step: it is not passed over in silence.
TEST_F(CheckpointCli, SlicesThatAreNewerThanTheWholeOnes) {
  const fs::path folder = saved();
  const fs::path slices = path("run/checkpoints/step-00000003");
  fs::create_directory(slices);
  const std::string state = content_of(folder / "state.json");
  std::ofstream(slices / "state.json") << state;
  const PlannedFile whole{"master-00001-of-00001.safetensors",
                          {{"embed.weight", TensorType::kF32, {7, 5}}}};
  std::ofstream(slices / "manifest.json") << Manifest{
      .step = 3,
      .files = {{.name = "state.json", .size_bytes = state.size(), .hash = {}, .tensors = {}}},
      .slices = ManifestSlices{.save = std::string(32, 'a'),
                               .hosts = {"a", "b"},
                               .whole = {whole}}}.json();
  expect_one_line(convert(path("run"), "hf", "--to hf"),
                  {slices.string(), "checkpoint gather", folder.string()});
  EXPECT_FALSE(fs::exists(path("hf")));
  EXPECT_EQ(convert(folder, "hf", "--to hf").code, 0);
  const Finished shown = tandem(fmt::format("checkpoint show '{}'", path("run")));
  EXPECT_THAT(shown.out, HasSubstr(slices.string())) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("disk 1 of 2"));
}

TEST_F(CheckpointCli, VerifyFindsAFlippedBitInEveryFile) {
  const fs::path newest = saved();
  const auto verify = [&](const fs::path& folder) {
    return tandem(fmt::format("checkpoint verify '{}'", folder.string()));
  };
  const Finished whole = verify(newest);
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, testing::MatchesRegex("[0-9]+ files, [0-9]+ tensors, .* GB: whole\n"));
  const Finished both = verify(path("run"));
  EXPECT_EQ(both.code, 0) << both.err;
  EXPECT_EQ(std::ranges::count(both.out, '\n'), 2) << both.out;

  const Manifest manifest = Manifest::parse(content_of(newest / "manifest.json"), "of this test");
  std::size_t damaged = 0;
  for (const ManifestFile& file : manifest.files) {
    const ManifestTensor* tensor =
        file.tensors.empty() ? nullptr : &file.tensors[file.tensors.size() / 2];
    const std::uint64_t at =
        tensor == nullptr ? file.size_bytes / 2 : tensor->begin_byte + tensor->size_bytes - 1;
    flip_bit(newest / file.name, at);
    expect_one_line(verify(newest), {file.name, tensor == nullptr ? "" : tensor->name});
    flip_bit(newest / file.name, at);
    ++damaged;
  }
  EXPECT_GE(damaged, 6U);
  const ManifestFile& first = manifest.files.front();
  flip_bit(newest / first.name, 20);
  expect_one_line(verify(newest), {first.name, "header"});
  flip_bit(newest / first.name, 20);
  flip_bit(newest / "manifest.json", fs::file_size(newest / "manifest.json") / 2);
  expect_one_line(verify(newest), {"manifest.json"});
  const Finished of_run = verify(path("run"));
  EXPECT_EQ(of_run.code, 2);
  EXPECT_THAT(of_run.out, HasSubstr("step-00000001: ")) << "the other one is whole";
  EXPECT_THAT(of_run.err, HasSubstr("step-00000002"));
  flip_bit(newest / "manifest.json", fs::file_size(newest / "manifest.json") / 2);
  EXPECT_EQ(verify(newest).code, 0) << "as it was";
  fs::resize_file(newest / first.name, first.size_bytes - 1);
  expect_one_line(verify(newest), {first.name, "bytes"});
}

TEST_F(CheckpointCli, ToUniversalAndBackChangesNoBitAndTheRunGoesOn) {
  const std::string newest = saved();
  const Finished there = convert(newest, "universal", "--to universal");
  ASSERT_EQ(there.code, 0) << there.err;
  ASSERT_TRUE(fs::exists(path("universal/latest_universal")));
  const Finished back = convert(path("universal"), "back", "--to tandem");
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_TRUE(tensors_of(newest) == tensors_of(path("back")));
  EXPECT_EQ(tensors_of(newest).size() % 3, 0U);
  EXPECT_EQ(tandem(fmt::format("checkpoint verify '{}'", path("back"))).code, 0);

  const Finished straight = run("straight", 4, "");
  ASSERT_EQ(straight.code, 0) << straight.err;
  const Finished resumed = run("resumed", 4, fmt::format("--resume '{}'", path("back")));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("not known"));
  auto losses = column("straight", "loss");
  losses.erase(losses.begin(), losses.begin() + 2);
  EXPECT_EQ(column("resumed", "loss"), losses);
  expect_no_leftovers();
}

TEST_F(CheckpointCli, ToHuggingFaceInAType) {
  const std::string newest = saved();
  const Finished exact = convert(path("run"), "exact", "--to hf");
  ASSERT_EQ(exact.code, 0) << exact.err;
  const SafetensorsFile weights = SafetensorsFile::open(path("exact/model.safetensors"));
  const Tensors saved_tensors = tensors_of(newest);
  for (const TensorInfo& tensor : weights.tensors()) {
    const auto bytes = weights.bytes(tensor);
    EXPECT_TRUE(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) ==
                saved_tensors.at({"master", tensor.name}))
        << tensor.name;
  }
  EXPECT_EQ(weights.tensors().size() * 3, saved_tensors.size());
  EXPECT_TRUE(fs::exists(path("exact/config.json")));
  const Finished rounded = convert(newest, "rounded", "--to hf --dtype bf16");
  ASSERT_EQ(rounded.code, 0) << rounded.err;
  EXPECT_EQ(SafetensorsFile::open(path("rounded/model.safetensors")).tensors().front().type,
            TensorType::kBF16);
}

TEST_F(CheckpointCli, WhatCannotBeConvertedLeavesNothing) {
  const fs::path newest = saved();
  const std::string source = newest.string();
  expect_one_line(convert(source, "run", "--to hf"), {"run", "empty"});
  expect_one_line(convert(source, "a", "--to tandem"), {"already"});
  expect_one_line(convert(source, "a", "--to torch"), {"--to", "universal"});
  expect_one_line(convert(source, "a", "--to universal --dtype bf16"), {"--dtype", "--to hf"});
  expect_one_line(convert(source, "a", "--to hf --dtype fp8"), {"--dtype", "fp8"});
  expect_one_line(convert(path("nowhere"), "a", "--to hf"), {"nowhere"});
  expect_one_line(convert(kDemo, "a", "--to hf"), {"manifest.json"});
  fs::create_directories(folder_ / "odd" / "manifest.json");
  expect_one_line(convert(path("odd"), "a", "--to hf"), {"manifest.json"});
  write("latest/latest", "../../etc");
  expect_one_line(convert(path("latest"), "a", "--to hf"), {"latest"});
  const fs::path masters = newest / "master-00001-of-00001.safetensors";
  flip_bit(masters, fs::file_size(masters) - 1);
  expect_one_line(convert(source, "a", "--to hf"), {"master-00001", "tensor"});
  // A file size limit stands for a full disk.
  flip_bit(masters, fs::file_size(masters) - 1);
  for (const char* to : {"hf", "universal"}) {
    const Finished full =
        shell(fmt::format("trap '' XFSZ; ulimit -f 1000; '{}/tandem' convert '{}' '{}' --to {}",
                          test::bin_dir(), source, path("a"), to));
    EXPECT_EQ(full.code, 1) << full.err;
    EXPECT_EQ(std::ranges::count(full.err, '\n'), 1) << full.err;
  }
  EXPECT_FALSE(fs::exists(path("a")));
  expect_no_leftovers();
  fs::create_directory(path("a"));
  EXPECT_EQ(convert(source, "a", "--to hf").code, 0) << "an empty folder is as good as none";
}

/// Checkpoints that DeepSpeed saved, in all formats, with the expected values beside them: small
/// ones, and large ones where they are there.
class ConvertGolden : public test::WithWarmPython<CheckpointCli> {
 protected:
  [[nodiscard]] static std::vector<fs::path> goldens() {
    return test::references({"deepspeed"}, {"oracles/ds_ckpt"});
  }
  static void expect_state(const fs::path& expected, const Tensors& found,
                           const std::string& name) {
    const SafetensorsFile file = SafetensorsFile::open(expected);
    std::size_t equal = 0;
    for (const TensorInfo& tensor : file.tensors()) {
      const std::size_t dot = tensor.name.find('.');
      const std::string kind = tensor.name.substr(0, dot);
      const auto at = found.find({kind == "fp32" ? "master" : kind, tensor.name.substr(dot + 1)});
      if (at == found.end()) {  // the other name of a tied one
        EXPECT_THAT(tensor.name, HasSubstr("lm_head")) << name;
        continue;
      }
      const auto bytes = file.bytes(tensor);
      EXPECT_TRUE(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) ==
                  at->second)
          << name << " " << tensor.name;
      ++equal;
    }
    EXPECT_EQ(equal, found.size()) << name;
  }
};

TEST_F(ConvertGolden, DeepSpeedsFoldersToAllForms) {
  std::vector<fs::path> sources;
  for (const fs::path& golden : goldens()) {
    for (const auto& entry : fs::directory_iterator(golden)) {
      if (fs::exists(entry.path() / "record.json")) {
        sources.push_back(entry.path());
      }
    }
  }
  std::ranges::sort(sources);
  EXPECT_GE(sources.size(), 3U);
  for (std::size_t number = 0; const fs::path& source : sources) {
    const std::string name = fmt::format("{} {}", number, source.filename().string());
    // The other forms are written from what was read, wherever it lay: a third of the folders.
    const bool is_for_all = number++ % 3 == 0;
    for (const char* to : {"tandem", "hf", "universal"}) {
      if (is_for_all || to == std::string_view("tandem")) {
        const Finished done = convert(source.string(), name + "-" + to, fmt::format("--to {}", to));
        ASSERT_EQ(done.code, 0) << name << " " << to << done.err;
      }
    }
    EXPECT_EQ(tandem(fmt::format("checkpoint verify '{}'", path(name + "-tandem"))).code, 0);
    const Tensors tensors = tensors_of(path(name + "-tandem"));
    if (is_for_all) {
      ASSERT_EQ(convert(path(name + "-universal"), name + "-back", "--to tandem").code, 0);
      EXPECT_TRUE(tensors == tensors_of(path(name + "-back"))) << name;
    }
    if (const fs::path state = source / "state_at_save.safetensors"; fs::exists(state)) {
      expect_state(state, tensors, name);
    }
  }
}

TEST_F(ConvertGolden, TorchsFilesHaveNoMoments) {
  for (const char* name : {"single", "sharded"}) {
    const std::string source = (goldens().back() / "pytorch_bin" / name).string();
    const std::string target = fmt::format("{}-tandem", name);
    const Finished done = convert(source, target, "--to tandem");
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("exp_avg"));
    EXPECT_TRUE(fs::exists(path(target + "/config.json")));
    EXPECT_EQ(convert(source, fmt::format("{}-hf", name), "--to hf --dtype fp16").code, 0);
  }
}

TEST_F(ConvertGolden, HostileFilesAreRefusedInOneLine) {
  for (const auto& entry : fs::directory_iterator(goldens().front() / "hostile")) {
    expect_one_line(convert(entry.path().string(), "a", "--to universal"),
                    {entry.path().filename().string()});
    const fs::path folder = folder_ / "as a model" / entry.path().stem();
    fs::create_directories(folder);
    fs::copy_file(entry.path(), folder / "pytorch_model.bin");
    expect_one_line(convert(folder.string(), "a", "--to tandem"), {"pytorch_model.bin"});
  }
  EXPECT_FALSE(fs::exists(path("a")));
  expect_no_leftovers();
}

}  // namespace
}  // namespace tandem
