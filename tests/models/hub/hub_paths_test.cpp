// A name is a path, or a hub id in the cache; a path that is not there is answered with the nearest
// name, and never with a download.
#include "models/hub/hub_paths.hpp"

#include <string>

#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/variable.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class HubPaths : public ::testing::Test {
 protected:
  void put(const std::string& name) const {
    fs::create_directories((dir_ / name).parent_path());
    test::put(dir_ / name, "{}");
  }
  [[nodiscard]] std::string path(const std::string& name) const { return (dir_ / name).string(); }

  static void expect_no_download(const std::function<void()>& resolve,
                                 const std::vector<std::string>& parts) {
    try {
      resolve();
      FAIL() << "resolved";
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const std::string& part : parts) {
        EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
      }
      EXPECT_EQ(text.find("fetch"), std::string::npos) << text;
    }
  }

  test::TempDir dir_;
  test::Variable cache_{"HF_HUB_CACHE", (dir_ / "hub").string()};
};

TEST_F(HubPaths, AMistypedPathIsAnsweredWithTheNearest) {
  put("data/alpaca.json");
  put("data/other.json");
  put("Qwen3/config.json");
  expect_no_download(
      [&] { (void)resolve_dataset_file(path("data/alpca.json")); },
      {"[dataset]", "alpca.json: no such file", "the nearest name in ", "data", " is alpaca.json"});
  expect_no_download([&] { (void)resolve_dataset_file(path("dat/alpaca.json")); },
                     {"no such file", " is data"});
  expect_no_download([&] { (void)resolve_dataset_file("alpca.json"); }, {"no such file"});
  expect_no_download([&] { (void)resolve_dataset_file("./alpaca"); }, {"no such file"});
  expect_no_download([&] { (void)resolve_model_folder(path("Qwen")); },
                     {"[model]", "no such file or folder", " is Qwen3"});
  expect_no_download([&] { (void)resolve_model_folder(path("Qwen3/config.json")); },
                     {"is a file", "folder"});
  expect_no_download([&] { (void)resolve_dataset_file(path("data")); },
                     {"several files", "alpaca.json and 1 more"});
  fs::create_directory(dir_ / "empty");
  expect_no_download([&] { (void)resolve_model_folder(path("empty/model")); }, {"empty is empty"});
}

TEST_F(HubPaths, ANameThatIsNearOneHereIsASlip) {
  put("Qwen3-tiny/config.json");
  const fs::path before = fs::current_path();
  fs::current_path(dir_.path());
  expect_no_download([&] { (void)resolve_model_folder("Qwen3-tny"); },
                     {"Qwen3-tny: no such file or folder; the nearest name in . is Qwen3-tiny"});
  test::expect_error([&] { (void)resolve_model_folder("Qwen2"); }, {"./tandem fetch model Qwen2"});
  fs::current_path(before);
}

TEST_F(HubPaths, AnIdIsLookedUpInTheCache) {
  put("hub/models--org--name/snapshots/1/config.json");
  put("hub/datasets--org--data/snapshots/1/train.jsonl");
  EXPECT_EQ(resolve_model_folder("org/name"), dir_ / "hub/models--org--name/snapshots/1");
  EXPECT_EQ(resolve_dataset_file("org/data").filename(), "train.jsonl");
  test::expect_error([&] { (void)resolve_model_folder("org/Qwen2.5-0.5B"); },
                     {"./tandem fetch model org/Qwen2.5-0.5B"});
  test::expect_error([&] { (void)resolve_dataset_file("tatsu-lab/alpaca"); },
                     {"./tandem fetch dataset tatsu-lab/alpaca"});
}

TEST_F(HubPaths, TheMainBranchCountsAndNotTheNewestSnapshot) {
  put("hub/models--a--m/snapshots/111/config.json");
  put("hub/models--a--m/snapshots/222/config.json");
  fs::last_write_time(dir_ / "hub/models--a--m/snapshots/111", fs::file_time_type::min());
  EXPECT_EQ(resolve_model_folder("a/m").filename(), "222");
  fs::create_directories(dir_ / "hub/models--a--m/refs");
  test::put(dir_ / "hub/models--a--m/refs/main", "111\n");
  EXPECT_EQ(resolve_model_folder("a/m").filename(), "111");
  put("hub/models--a--m/snapshots/333/tokenizer.json");
  test::put(dir_ / "hub/models--a--m/refs/main", "333");
  test::expect_error([&] { (void)resolve_model_folder("a/m"); }, {"not whole", "fetch model a/m"});
}

TEST_F(HubPaths, ARevisionStandsBehindTheId) {
  const std::string repository = "hub/models--a--m/";
  for (const char* commit : {"111aaa", "111bbb", "222ccc", "333ddd", "1"}) {
    put(repository + "snapshots/" + commit + "/config.json");
  }
  put(repository + "snapshots/444eee/tokenizer.json");
  for (const auto& [ref, commit] :
       {std::pair{"main", "111aaa"}, {"v1.0", "222ccc"}, {"refs/pr/7", "333ddd"}}) {
    put(repository + "refs/" + ref);
    test::put(dir_ / repository / "refs" / ref, std::string(commit) + "\n");
  }
  for (const auto& [revision, commit] : {std::pair{"main", "111aaa"},
                                         {"v1.0", "222ccc"},
                                         {"refs/pr/7", "333ddd"},
                                         {"222ccc", "222ccc"},
                                         {"111b", "111bbb"},
                                         {"1", "1"}}) {
    EXPECT_EQ(resolve_model_folder(std::string("a/m@") + revision).filename(), commit) << revision;
  }
  EXPECT_EQ(resolve_model_folder("a/m").filename(), "111aaa");
  const auto refused = [](const std::string& name, std::initializer_list<std::string_view> parts) {
    test::expect_error([&] { (void)resolve_model_folder(name); }, parts);
  };
  refused("a/m@v2", {"a/m has no revision v2", "./tandem fetch model a/m@v2"});
  refused("a/m@111", {"several that begin as revision 111"});
  refused("a/m@444", {"not whole", "./tandem fetch model a/m@444"});
  refused("a/m@../snapshots/222ccc", {"no revision ../snapshots/222ccc"});
  refused("b/m@v1", {"neither a folder", "./tandem fetch model b/m@v1"});
  put("a@b/config.json");  // a folder of that name is one
  EXPECT_EQ(resolve_model_folder(path("a@b")), dir_ / "a@b");
  put("hub/datasets--a--d/snapshots/1/train.jsonl");
  put("hub/datasets--a--d/snapshots/2/train.jsonl");
  EXPECT_EQ(resolve_dataset_file("a/d@2").parent_path().filename(), "2");
}

TEST_F(HubPaths, TheCacheLiesWhereHuggingFaceHasIt) {
  put("xdg/huggingface/hub/models--a--m/snapshots/1/config.json");
  const test::Variable none("HF_HUB_CACHE", "");
  const test::Variable home("HF_HOME", "");
  const test::Variable xdg("XDG_CACHE_HOME", path("xdg"));
  EXPECT_EQ(resolve_model_folder("a/m"), dir_ / "xdg/huggingface/hub/models--a--m/snapshots/1");
}

/// As a container's or a service's environment may pass them.
TEST_F(HubPaths, VariablesInTheCachesPathAreExpanded) {
  const test::Variable cache("HF_HUB_CACHE", "");
  const test::Variable root("PLANTED_ROOT", dir_.path().string());
  const test::Variable name("PLANTED_NAME", "huggingface");
  put("x/huggingface/hub/models--a--m/snapshots/1/config.json");
  const fs::path found = dir_ / "x/huggingface/hub/models--a--m/snapshots/1";
  for (const char* text : {"$PLANTED_ROOT/x/${PLANTED_NAME}", "${PLANTED_ROOT}/x/$PLANTED_NAME"}) {
    const test::Variable home("HF_HOME", text);
    EXPECT_EQ(resolve_model_folder("a/m"), found) << text;
  }
  const test::Variable home("HF_HOME", "");
  const test::Variable xdg("XDG_CACHE_HOME", "$PLANTED_ROOT/x");
  EXPECT_EQ(resolve_model_folder("a/m"), found);
  const test::Variable absent("HUGGINGFACE_HUB_CACHE", "/$PLANTED_ABSENT/${PLANTED_NAME}/$/${/b");
  test::expect_error([&] { (void)resolve_model_folder("a/m"); },
                     {"cache /$PLANTED_ABSENT/huggingface/$/${/b;"});
}

TEST_F(HubPaths, TrainIsTrainedOnWhateverLiesBesideIt) {
  for (const char* name : {"test.jsonl", "validation.jsonl", "dataset_infos.json", "train.jsonl"}) {
    put(std::string("hub/datasets--a--d/snapshots/1/") + name);
  }
  EXPECT_EQ(resolve_dataset_file("a/d").filename(), "train.jsonl");
  put("hub/datasets--a--d/snapshots/1/data/train-1.jsonl");
  test::expect_error([&] { (void)resolve_dataset_file("a/d"); }, {"several files", "1 more"});
  put("plain/latest.jsonl");
  put("plain/test/a.jsonl");
  EXPECT_EQ(resolve_dataset_file(path("plain")).filename(), "latest.jsonl");
  put("table/train.parquet");
  test::expect_error([&] { (void)resolve_dataset_file(path("table")); }, {"tandem prepare"});
}

/// Notebooks, archives and downloads leave copies there.
TEST_F(HubPaths, HiddenFilesAreNoData) {
  put("plain/data.jsonl");
  for (const char* name : {".ipynb_checkpoints/data-checkpoint.jsonl", "__MACOSX/data.jsonl",
                           "._data.jsonl", ".cache/old/train.jsonl"}) {
    put(std::string("plain/") + name);
  }
  EXPECT_EQ(resolve_dataset_file(path("plain")).filename(), "data.jsonl");
}

/// An interrupted download leaves such links: half of the data must not pass for all of it.
TEST_F(HubPaths, ALinkToAFileThatIsNotThereIsNamed) {
  put("plain/train_1.jsonl");
  fs::create_directory(dir_ / "plain/.cache");
  for (const char* name : {".cache/train_0.jsonl", "test.jsonl", "train.png"}) {
    fs::create_symlink("blobs/gone", dir_ / "plain" / name);
    EXPECT_EQ(resolve_dataset_file(path("plain")).filename(), "train_1.jsonl") << name;
  }
  fs::create_symlink("blobs/gone", dir_ / "plain/train_2.jsonl");
  test::expect_error([&] { (void)resolve_dataset_file(path("plain")); },
                     {"train_2.jsonl is a link to a file that is not there", "download it again"});
  put("hub/datasets--a--d/blobs/1");
  fs::create_directories(dir_ / "hub/datasets--a--d/snapshots/1");
  const fs::path link = dir_ / "hub/datasets--a--d/snapshots/1/train.jsonl";
  fs::create_symlink("../../blobs/1", link);
  EXPECT_EQ(resolve_dataset_file("a/d"), link);
  fs::remove(dir_ / "hub/datasets--a--d/blobs/1");
  test::expect_error([&] { (void)resolve_dataset_file("a/d"); }, {"train.jsonl is a link"});
}

TEST_F(HubPaths, ARunsFolderStandsForItsModel) {
  put("out/model/config.json");
  put("out/summary.json");
  EXPECT_EQ(resolve_model_folder(path("out")), dir_ / "out/model");
  EXPECT_EQ(resolve_model_folder(path("out/model")), dir_ / "out/model");
  put("both/config.json");
  put("both/model/config.json");
  EXPECT_EQ(resolve_model_folder(path("both")), dir_ / "both");
}

TEST_F(HubPaths, ConfigsAreLeftToPrepare) {
  put("set/train.jsonl");
  test::put(dir_ / "set/README.md", "---\nlicense: mit\n---\nconfigs:\n");
  EXPECT_EQ(resolve_dataset_file(path("set")).filename(), "train.jsonl");
  test::put(dir_ / "set/README.md", "---\nlicense: mit\nconfigs:\n- config_name: a\n---\n");
  test::expect_error([&] { (void)resolve_dataset_file(path("set")); }, {"set", "--dataset_config"});
}

}  // namespace
}  // namespace tandem
