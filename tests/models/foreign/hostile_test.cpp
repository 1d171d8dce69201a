// Files that were made to do harm, and a Python that does not do its work: each is an error of one
// line. tests/tools/convert/ has what Python refuses itself.
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "models/foreign/foreign_index.hpp"
#include "models/foreign/imported_checkpoint.hpp"
#include "tests/models/foreign/import_support.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class ImportHostile : public testing::Test {
 protected:
  void SetUp() override { test::put(folder_ / "data", std::string(256, '\x3d')); }
  void TearDown() override {
    ::unsetenv("TANDEM_PYTHON");
    ::unsetenv("TANDEM_TOOLS");
  }
  /// A program in the place of Python.
  void put_python(const std::string& script) {
    test::put(folder_ / "python", "#!/bin/sh\n" + script + "\n");
    fs::permissions(folder_ / "python", fs::perms::owner_all);
    ::setenv("TANDEM_PYTHON", (folder_ / "python").c_str(), 1);
  }
  void expect_refused(const fs::path& path, std::initializer_list<std::string_view> parts) {
    test::expect_error([&] { (void)test::read_whole(path); }, parts);
  }
  /// An index of one tensor of 4 elements; `change` has what is replaced in it.
  [[nodiscard]] ImportedCheckpoint read_index(std::string_view from, std::string_view to) {
    std::string index = std::string(kIndex);
    const std::size_t at = index.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return read_foreign_index(index.replace(at, from.size(), to), folder_.path());
  }
  void expect_wrong(std::string_view from, std::string_view to, std::string_view part) {
    SCOPED_TRACE(testing::Message() << from << " as " << to);
    test::expect_error([&] { (void)read_index(from, to); }, {"[import] the index of", part});
  }

  static constexpr std::string_view kIndex =
      R"({"kind": "pytorch", "global_steps": 1, "skipped_steps": 0, "optimizer_steps": 1,
"global_samples": 2, "scaler": {"scale": 2.0, "step": 1, "last_overflow": -1, "hysteresis": 2},
"schedule_step": null, "zero_stage": -1, "world_size": 1, "ds_version": "", "ds_config": "",
"client_state": "{}", "tied": {"b": "a"}, "notes": ["n"], "files": [["data", 256]],
"storages": [[0, 64, 32, 0]], "tensors": [{"name": "a", "shape": [2, 2], "type": "F32",
"frozen": false, "buffer": false, "stored": false, "master": [[0, "F32", 0, 3], [0, "F32", 7, 1]],
"exp_avg": [[0, "F32", 1, 4, [2, 2], [1, 2]]]}]})";
  test::TempDir folder_;
};

TEST_F(ImportHostile, AnIndexIsReadAsItSays) {
  const ImportedCheckpoint checkpoint = read_index("\"n\"", "\"m\"");
  ASSERT_EQ(checkpoint.tensors.size(), 1U);
  EXPECT_EQ(checkpoint.notes, std::vector<std::string>{"m"});
  EXPECT_EQ(checkpoint.scaler->hysteresis, 2);
  EXPECT_FALSE(checkpoint.schedule_step);
  EXPECT_FALSE(checkpoint.tensors[0].moments[1]);
  float value = 0;
  checkpoint.tensors[0].moments[0](3, 4, &value);
  EXPECT_GT(value, 0);
}

TEST_F(ImportHostile, AnIndexWithOneWrongNumberIsRefused) {
  expect_wrong("[0, 64, 32, 0]", "[0, 64, 193, 0]", "outside of the file");
  expect_wrong("[0, 64, 32, 0]", "[0, 9223372036854775807, 32, 0]", "outside of the file");
  expect_wrong("[0, 64, 32, 0]", "[1, 64, 32, 0]", "a file, its first byte");
  expect_wrong("[0, 64, 32, 0]", "[0, -64, 32, 0]", "integers from 0 on");
  expect_wrong("[0, 64, 32, 0]", "[0, 64, 32, 4294967296]", "a checksum");
  expect_wrong("[0, \"F32\", 0, 3]", "[1, \"F32\", 0, 3]", "a storage, a type");
  expect_wrong("[0, \"F32\", 0, 3]", "[0, \"F33\", 0, 3]", "a storage, a type");
  expect_wrong("[0, \"F32\", 0, 3]", "[0, \"F32\", 0, 4]", "has 5 elements, and its tensor 4");
  expect_wrong("[0, \"F32\", 0, 3]", "[0, \"F32\", 6, 3]", "does not fit into its storage");
  expect_wrong("[0, \"F32\", 7, 1]", "[0, \"F64\", 7, 1]", "does not fit into its storage");
  expect_wrong("[0, \"F32\", 7, 1]", "[0, \"F32\", 9223372036854775807, 1]", "does not fit");
  expect_wrong("[2, 2], [1, 2]", "[2, 2], [1, 9223372036854775807]", "does not fit");
  expect_wrong("[2, 2], [1, 2]", "[2, 2], [1, 6]", "does not fit");
  expect_wrong("[2, 2], [1, 2]", "[2, 2], [2]", "do not fit together");
  expect_wrong("1, 4, [2, 2]", "1, 67108864, [67108864, 1]", "does not fit");
  expect_wrong("\"shape\": [2, 2]", "\"shape\": [4294967296, 4294967296]", "too large");
  expect_wrong("\"name\": \"a\"", "\"name\": \"\\n\"", "no name");
  expect_wrong("\"stored\": false", "\"stored\": 1", "stored");
  expect_wrong("{\"b\": \"a\"}", "{\"b\": \"c\"}", "no other name");
  expect_wrong("{\"b\": \"a\"}", "{\"a\": \"a\"}", "no other name");
  expect_wrong("[\"data\", 256]", "[\"../data\", 256]", "below the checkpoint's folder");
  expect_wrong("[\"data\", 256]", "[\"/etc/passwd\", 256]", "below the checkpoint's folder");
  expect_wrong("\"world_size\": 1", "\"world_size\": 4294967296", "world_size");
  test::expect_error([&] { (void)read_index("\"data\", 256", "\"data\", 255"); }, {"was changed"});
  test::expect_error([&] { (void)read_index("\"data\"", "\"gone\""); }, {"gone"});
}

TEST_F(ImportHostile, AFileThatIsShortenedLaterIsAnError) {
  const ImportedCheckpoint checkpoint = read_index("\"n\"", "\"n\"");
  fs::resize_file(folder_ / "data", 10);
  std::vector<float> values(4);
  test::expect_error([&] { checkpoint.tensors[0].master(0, 4, values.data()); }, {"was shortened"});
}

TEST_F(ImportHostile, APythonThatDoesNotDoItsWorkIsOneLine) {
  const fs::path file = folder_ / "pytorch_model.bin";
  test::put(file, "PK");
  ::setenv("TANDEM_PYTHON", (folder_ / "nowhere").c_str(), 1);
  expect_refused(file, {"needs a Python with torch", "nowhere", "TANDEM_PYTHON", "tandem setup"});
  put_python("echo Traceback >&2; echo 'No module named x' >&2; exit 1");
  expect_refused(file, {"exit code 1: No module named x"});
  put_python("kill -SEGV $$");
  expect_refused(file, {"pytorch_model.bin", "signal 11"});
  put_python("kill -KILL $$");
  test::expect_error([&] { (void)open_foreign_checkpoint(file); }, {"signal 9", "memory"},
                     ExitCode::kFailure);
  put_python("echo 'error: [import] so\x1b[31m; do this' >&2; exit 2");
  expect_refused(file, {"[import] so\\x1b[31m; do this"});
  put_python("echo 'error: [import] no room; do this' >&2; exit 1");
  test::expect_error([&] { (void)open_foreign_checkpoint(file); }, {"no room"}, ExitCode::kFailure);
  put_python("echo '{'");
  expect_refused(file, {"the index of"});
  put_python("exit 0");
  test::expect_error([&] { write_universal(read_index("\"n\"", "\"n\""), folder_ / "u"); },
                     {"did not take all of it"}, ExitCode::kFailure);
  ASSERT_EQ(::dup2(STDERR_FILENO, 99), 99);
  put_python("test -e /proc/$$/fd/99 && exit 1; echo '{'");
  expect_refused(file, {"the index of"});  // it has no descriptor of this process
  ::close(99);
}

TEST_F(ImportHostile, APickleThatNamesAFunctionIsRefusedByThePython) {
  test::put(folder_ / "pytorch_model.bin",
            "\x80\2cos\nsystem\n(X\2" + std::string(3, '\0') + "id" + "tR.");
  expect_refused(folder_.path(),
                 {"[import]", "pytorch_model.bin", "os.system", "nothing in it was executed"});
}

TEST_F(ImportHostile, ChecksumsAreCompared) {
  const test::UnpackedCheckpoints own;
  if (!own) {
    GTEST_SKIP() << "tar or xz is not installed";
  }
  const fs::path file = own.path() / "pytorch_bin/parameters/pytorch_model.bin";
  const ImportedCheckpoint good = test::read_whole(file);
  float first = 0;
  good.tensors[0].master(0, 1, &first);
  std::string bytes = test::get(file);
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(&first), sizeof(first)));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  test::put(folder_ / "pytorch_model.bin", bytes);
  expect_refused(folder_.path(), {"pytorch_model.bin", "storage at byte", "checksum"});
}

TEST_F(ImportHostile, NamesOfFoldersAreLookedAtFirst) {
  ::setenv("TANDEM_PYTHON", "/nowhere", 1);  // no Python is asked
  fs::create_directories(folder_ / "run/global_step4");
  for (const char* tag : {"../run", "", "gone", "/tmp"}) {
    test::put(folder_ / "run/latest", tag);
    expect_refused(folder_ / "run", {"latest", "is no folder beside it"});
  }
  expect_refused(folder_ / "nowhere", {"nowhere", "no checkpoint of DeepSpeed"});
  EXPECT_FALSE(is_foreign_checkpoint(folder_ / "nowhere"));
  fs::remove(folder_ / "run/latest");
  test::put(folder_ / "run/global_step4/mp_rank_00_model_states.pt", "");
  EXPECT_TRUE(is_foreign_checkpoint(folder_ / "run"));
  expect_refused(folder_ / "run", {"no file `latest`", "global_step4"});
  fs::create_directories(folder_ / "fsdp");
  test::put(folder_ / "fsdp/__0_0.distcp", "");
  EXPECT_TRUE(is_foreign_checkpoint(folder_ / "fsdp"));
  expect_refused(folder_ / "fsdp", {"dcp_to_torch"});
}

TEST_F(ImportHostile, ANameThatIsNoFolderIsNotWritten) {
  EXPECT_EQ(read_index("\"name\": \"a\"", "\"name\": \"a\"").tied.at("b"), "a");
  ImportedCheckpoint odd = read_index("\"n\"", "\"n\"");
  odd.tensors[0].name = "\xc3\xa4/b";
  test::expect_error([&] { write_universal(odd, folder_ / "u"); }, {"the name of a folder"});
}

}  // namespace
}  // namespace tandem
