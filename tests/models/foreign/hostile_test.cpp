// Files that were made to do harm: every one is refused in one line, and nothing happens.
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "models/foreign/imported_checkpoint.hpp"
#include "models/foreign/torch_file.hpp"
#include "models/foreign/zip_directory.hpp"
#include "tests/models/foreign/archives.hpp"
#include "tests/models/foreign/import_support.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::archive;
using test::entries;
using test::number;
using test::pickle;
using test::raw;
using test::RawEntry;
using test::storage;
using test::tensor;
using test::text;

class ImportHostile : public testing::Test {
 protected:
  void put(const std::string& bytes) { test::put(path(), bytes); }
  fs::path path() { return folder_ / "pytorch_model.bin"; }
  /// The file is refused with these parts in the line.
  void refused(const std::string& bytes, std::initializer_list<std::string_view> parts) {
    put(bytes);
    test::expect_error([&] { (void)test::read_whole(folder_.path()); }, parts);
  }
  void refused_pickle(const std::string& value, std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(testing::Message() << "other = " << value);
    refused(archive(entries(pickle(value))), parts);
  }
  test::TempDir folder_;
};

TEST_F(ImportHostile, AGoodFileOfThisKindIsRead) {
  put(archive(entries(pickle("N"))));
  const ImportedCheckpoint checkpoint = test::read_whole(folder_.path());
  ASSERT_EQ(checkpoint.tensors.size(), 1U);
  EXPECT_EQ(checkpoint.tensors[0].name, "weight");
  ASSERT_EQ(checkpoint.notes.size(), 1U);
}

TEST_F(ImportHostile, NamesOfTensors) {
  const std::string value = tensor(storage(), 0, {4}, {1});
  const auto named = [&](const std::string& name) {
    return archive(entries("\x80\2}(" + name + value + text("b") + value + "u."));
  };
  put(named(text("\xc3\xa4/b")));
  const ImportedCheckpoint odd = test::read_whole(folder_.path());
  EXPECT_EQ(odd.tied, (std::map<std::string, std::string>{{"b", "\xc3\xa4/b"}}));
  test::expect_error([&] { write_universal(odd, folder_ / "u"); }, {"the name of a folder"});
  refused(named(text("")), {"no name of a tensor"});
  refused(named(text("a\nb")), {R"("a\x0ab" is no name)"});
  refused(named(text("a\xff")), {"no name of a tensor"});
  refused(named(number(7)), {"no name of a tensor"});
  refused(named(text("b")), {"there twice"});
}

TEST_F(ImportHostile, NamesThatAreNotOnTheList) {
  const std::string touch = "(" + text("touch " + (folder_ / "executed").string()) + "tR";
  refused_pickle("cos\nsystem\n" + touch, {"os.system", "nothing in it was executed"});
  refused_pickle("cposix\nsystem\n" + touch, {"posix.system"});
  refused_pickle("cbuiltins\neval\n" + touch, {"builtins.eval"});
  refused_pickle("c__builtin__\ngetattr\n" + touch, {"__builtin__.getattr"});
  refused_pickle(text("os") + text("system") + "\x93" + touch, {"os.system"});
  refused_pickle("cos\nsystem\n", {"os.system"});  // named and never called
  refused_pickle("ctorch\nload\n" + touch, {"torch.load"});
  refused_pickle("ctorch.storage\n_load_from_bytes\n" + touch, {"_load_from_bytes"});
  refused_pickle("ctorch.serialization\nload\n" + touch, {"torch.serialization.load"});
  refused_pickle("cnumpy\nndarray\n" + touch, {"numpy.ndarray"});
  refused_pickle("ccollections\nOrderedDict.__init__\n" + touch, {"OrderedDict.__init__"});
  refused_pickle("ctorch\nSize.__class__\n" + touch, {"Size.__class__"});
  refused_pickle("cos\x1b[31m\nsy\x07stem\n" + touch, {R"(os\x1b[31m.sy\x07stem)"});
  EXPECT_FALSE(fs::exists(folder_ / "executed"));
}

TEST_F(ImportHostile, AllowedNamesUsedForSomethingElse) {
  const std::string dict = "ccollections\nOrderedDict\n";
  refused_pickle(dict + "(" + text("a") + "tR", {"collections.OrderedDict", "other arguments"});
  refused_pickle("ctorch\nFloatStorage\n)R", {"torch.FloatStorage"});
  refused_pickle("ctorch\nTensor\n)\x81", {"torch.Tensor"});
  refused_pickle("ctorch\nSize\n(" + text("a") + "tR", {"torch.Size"});
  refused_pickle("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nSize\nctorch\nTensor\n)}tR",
                 {"_rebuild_from_type_v2"});
  refused_pickle(dict + ")R}(" + text("__class__") + "NubN", {"a state"});
  refused_pickle("cdeepspeed.runtime.fp16.loss_scaler\nLossScaler\n)\x81Nb", {"a state"});
  refused_pickle("N)R", {"a call of something else than a name"});
  refused_pickle(text("os") + "Q", {"a reference that is not one to a storage"});
  refused_pickle("(" + text("module") + "cos\nsystem\nt", {"os.system"});
}

// A list of 1,000 values, and 2,000 sets of it: 2 kB that ask for 16 MB, as a megabyte would for
// gigabytes.
TEST_F(ImportHostile, SetsThatRepeatOneListAreBounded) {
  std::string values = "](";
  for (int i = 0; i < 1000; ++i) {
    values += "N";
  }
  values += "eq\x07";
  std::string list = "](";
  for (int i = 0; i < 2000; ++i) {
    list += "cbuiltins\nset\nh\x07\x85R";
  }
  refused_pickle("(" + values + list + "et", {"sets repeat more values"});
}

TEST_F(ImportHostile, OperationsThatAreNotOnesOfData) {
  for (const std::string op :
       {"i", "o", "P", "\x82", "\x83", "\x84", "\x92", "I",    "S",    "V",
        "g", "p", "0", "1",    "2",    "\x8b", "\x8f", "\x96", "\x97", "\x98"}) {
    refused_pickle(op + "a\nb\n", {"operation 0x"});
  }
  refused_pickle("\x80\x05N", {"protocol 5"});
}

TEST_F(ImportHostile, SizesDepthsAndCycles) {
  refused_pickle(std::string(2000, '('), {"marks are open"});
  refused_pickle("N" + std::string(1000, '\x85'), {"deep"});
  std::string lists(200, ']');
  refused_pickle(lists + std::string(199, 'a'), {"deep"});
  refused_pickle(
      "]q\x01h\x01"
      "a",
      {"holds itself"});
  refused_pickle(
      "]q\x01]q\x02h\x01"
      "aa",
      {"after its use"});
  refused_pickle("h\x77", {"a reference to nothing"});
  refused_pickle("j" + raw<std::uint32_t>(0xFFFFFFFF), {"a reference to nothing"});
  refused_pickle("X" + raw<std::uint32_t>(0xFFFFFFFF) + "a", {"cut short"});
  refused_pickle("\x8e" + raw<std::uint64_t>(~0ULL) + "a", {"cut short"});
  refused_pickle(std::string(5 << 20, 'N'), {"more than 4194304 values"});
  refused(archive(entries(pickle("N") + "N")), {"more follows"});
  refused(archive(entries("\x80\2NN.")), {"other than one value"});
  refused(archive(entries("\x80\2")), {"cut short"});
  refused(archive(entries("\x80\2].")), {"no dict"});
}

/// A list of lists of lists ..., each ten times the one before: small as a pickle, huge as a text.
TEST_F(ImportHostile, AGraphIsNotSpeltAsATree) {
  std::string bomb = "]q\x01";
  for (char i = 2; i < 40; ++i) {
    bomb += "](";
    for (int n = 0; n < 10; ++n) {
      bomb += std::string("h") + static_cast<char>(i - 1);
    }
    bomb += std::string("eq") + i;
  }
  const std::string state = "\x80\2}(" + text("module") + "}(" + text("w") +
                            tensor(storage(), 0, {4}, {1}) + "u" + text("bomb") + "(" + bomb +
                            "tu.";
  test::put(folder_ / "mp_rank_00_model_states.pt", archive(entries(state)));
  const ImportedCheckpoint checkpoint = test::read_whole(folder_.path());
  EXPECT_EQ(checkpoint.client_state_json, "{}");
  EXPECT_EQ(checkpoint.tensors.size(), 1U);
}

TEST_F(ImportHostile, TensorsOutsideOfTheirStorage) {
  const std::int64_t half = std::int64_t{1} << 31;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  refused_pickle(tensor(storage(), 1, {4}, {1}), {"does not fit"});
  refused_pickle(tensor(storage(), 0, {half, half}, {half, 1}), {"does not fit"});
  refused_pickle(tensor(storage(), 0, {half, half, 4}, {0, 0, 0}), {"does not fit"});
  refused_pickle(tensor(storage(), most, {2}, {1}), {"does not fit"});
  refused_pickle(tensor(storage(), 0, {2}, {most}), {"does not fit"});
  refused_pickle(tensor(storage(), -1, {1}, {1}), {"shape, strides or offset"});
  refused_pickle(tensor(storage(), 3, {4}, {-1}), {"shape, strides or offset"});
  refused_pickle(tensor(storage(), 0, {-4}, {1}), {"shape, strides or offset"});
  refused_pickle(tensor(storage(), 0, {4}, {}), {"shape, strides or offset"});
  refused_pickle(
      tensor(storage(), 0, std::vector<std::int64_t>(40, 1), std::vector<std::int64_t>(40, 1)),
      {"shape, strides or offset"});
  refused_pickle(tensor(storage(), 0, {1 << 26}, {0}), {"out of a storage of 4"});
  refused_pickle(tensor(storage("0", 5), 0, {5}, {1}), {"differ"});
  refused_pickle(tensor(storage("1"), 0, {4}, {1}), {"a/data/1 is missing"});
  refused_pickle(tensor(storage("../../data.pkl"), 0, {4}, {1}), {"missing"});
  refused_pickle(tensor(storage("0", most), 0, {4}, {1}), {"elements"});
  refused_pickle(tensor(storage("0", -4), 0, {0}, {1}), {"a storage of -4 elements"});
  refused_pickle(tensor(storage("0", 4, "ctorch\nSize\n"), 0, {4}, {1}), {"torch.Size"});
}

TEST_F(ImportHostile, Archives) {
  const std::vector<RawEntry> good = entries(pickle("N"));
  const auto with = [&](const std::function<void(std::vector<RawEntry>&)>& change) {
    std::vector<RawEntry> out = good;
    change(out);
    return archive(out);
  };
  const auto add = [&](RawEntry entry) {
    return with([&](auto& all) { all.push_back(std::move(entry)); });
  };
  refused(add({.name = "a/../../../../tmp/PWNED"}), {"leads out of the archive"});
  refused(add({.name = "/tmp/PWNED"}), {"leads out of the archive"});
  refused(add({.name = "a\\..\\b"}), {"leads out of the archive"});
  refused(add({.name = std::string("a/b\0c", 5)}), {"leads out of the archive"});
  refused(add({.name = "a/data/0"}), {"twice"});
  refused(add({.name = "b/x"}), {"none of torch.save's"});
  refused(add({.name = "a/x", .bytes = "12", .method = 8}), {"packed"});
  refused(add({.name = "a/x", .bytes = "12", .local_name = "a/y"}), {"disagree"});
  refused(add({.name = "a/x", .bytes = "12", .shift = -1}), {"disagree"});
  refused(add({.name = "a/x", .bytes = "12", .grow = 1 << 20}), {"outside of the file"});
  refused(with([](auto& all) { all[2].grow = 8; }), {"overlap"});
  refused(with([](auto& all) { all[2].bytes.pop_back(); }), {"15 bytes", "need 16"});
  refused(with([](auto& all) { all[1].bytes = "big"; }), {"big-endian"});
  refused(with([](auto& all) { all.erase(all.begin()); }), {"none of torch.save's"});
  const std::string whole = archive(good);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    test::expect_error([&] { (void)test::read_whole(folder_.path()); }, {"pytorch_model.bin"});
  }
  refused(whole + "more", {"does not end with the archive's directory"});
  refused("\x80\2K\1.", {"none of torch.save's"});
  refused("<html>", {"no file of torch.save"});
}

TEST_F(ImportHostile, ChecksumsAreCompared) {
  const test::UnpackedCheckpoints own;
  if (!own) {
    GTEST_SKIP() << "tar or xz is not installed";
  }
  std::string bytes = test::get(own.path() / "pytorch_bin/parameters/pytorch_model.bin");
  const ImportedCheckpoint good =
      test::read_whole(own.path() / "pytorch_bin/parameters/pytorch_model.bin");
  float first = 0;
  good.tensors[0].master(0, 1, &first);
  const std::size_t at = bytes.find(raw(first));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  refused(bytes, {"storage 0", "checksum"});
}

// ---- folders

TEST_F(ImportHostile, FoldersThatAreNotWhole) {
  const test::UnpackedCheckpoints own;
  if (!own) {
    GTEST_SKIP() << "tar or xz is not installed";
  }
  const fs::path all = own.path();
  const auto expect = [&](const char* name, std::initializer_list<std::string_view> parts) {
    test::expect_error([&] { (void)open_foreign_checkpoint(all / name); }, parts);
  };
  const fs::path stage1 = all / "stage1_fp32_w3_groups/global_step4";
  const auto optimizer = [&](int rank) {
    return stage1 / fmt::format("zero_pp_rank_{}_mp_rank_00_optim_states.pt", rank);
  };
  fs::rename(optimizer(1), stage1 / "gone");
  expect("stage1_fp32_w3_groups", {"of rank 1", "copy the checkpoint again"});
  fs::rename(stage1 / "gone", optimizer(1));
  fs::rename(optimizer(2), stage1 / "gone");
  expect("stage1_fp32_w3_groups", {"number of ranks"});
  fs::rename(stage1 / "gone", optimizer(2));
  test::put(stage1 / "mp_rank_01_model_states.pt", "");
  expect("stage1_fp32_w3_groups", {"tensor parallelism"});
  fs::rename(stage1 / "mp_rank_01_model_states.pt",
             stage1 / "layer_0_expert_0_mp_rank_00_model_states.pt");
  expect("stage1_fp32_w3_groups", {"expert parallelism"});
  fs::remove(stage1 / "layer_0_expert_0_mp_rank_00_model_states.pt");
  fs::copy_file(optimizer(0), stage1 / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
  expect("stage1_fp32_w3_groups", {"two kinds of files"});
  fs::remove(stage1 / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
  (void)open_foreign_checkpoint(all / "stage1_fp32_w3_groups");
  for (const char* tag : {"../stage1", "", "gone", "/tmp"}) {
    test::put(all / "stage1_fp32_w3_groups/latest", tag);
    expect("stage1_fp32_w3_groups", {"latest", "is no folder beside it"});
  }
  fs::remove_all(all / "universal_stage1_w2/global_step4/zero/layers.0.norm");
  expect("universal_stage1_w2", {"1 of the 2 parameters"});
  expect("nowhere", {"nowhere", "no checkpoint of DeepSpeed"});
  EXPECT_FALSE(is_foreign_checkpoint(all / "nowhere"));
}

// ---- any bytes

TEST_F(ImportHostile, DamagedFilesAreAnErrorOrFine) {
  const test::UnpackedCheckpoints own;
  if (!own) {
    GTEST_SKIP() << "tar or xz is not installed";
  }
  const fs::path bins = own.path() / "pytorch_bin";
  for (const char* name : {"legacy", "views", "odd"}) {
    test::fuzz(test::get(bins / name / "pytorch_model.bin"), 300, [&](const std::string& bytes) {
      put(bytes);
      (void)test::read_whole(folder_.path());
    });
  }
}

/// Damage behind the checksum: the pickle alone, in an archive that is whole.
TEST_F(ImportHostile, DamagedPicklesAreAnErrorOrFine) {
  const test::UnpackedCheckpoints own;
  if (!own) {
    GTEST_SKIP() << "tar or xz is not installed";
  }
  const std::map<std::string, std::string> files = {
      {"stage0_plain_groups", "mp_rank_00_model_states.pt"},
      {"stage1_bf16_w2_aligned_frozen", "mp_rank_00_model_states.pt"},
      {"stage2_fp16_w2_round_robin", "zero_pp_rank_0_mp_rank_00_optim_states.pt"},
      {"stage3_bf16_w3_tied_frozen", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"},
      {"stage3_fp16_w2_sub_groups", "zero_pp_rank_0_mp_rank_00_model_states.pt"}};
  for (const auto& [name, file] : files) {
    SCOPED_TRACE(name);
    fs::path path;
    for (const auto& entry : fs::recursive_directory_iterator(own.path() / name)) {
      path = entry.path().filename() == file ? entry.path() : path;
    }
    const std::string whole = test::get(path);
    std::vector<RawEntry> parts;
    for (const ZipEntry& entry :
         read_zip_directory(FileHandle::open_read(path, "test"), whole.size(), path)) {
      parts.push_back({.name = entry.name, .bytes = whole.substr(entry.begin, entry.size)});
    }
    const std::string good = parts[0].bytes;
    test::fuzz(good, 200, [&](const std::string& bytes) {
      parts[0].bytes = bytes;
      test::put(path, archive(parts));
      (void)test::read_whole(own.path() / name);
    });
  }
}

}  // namespace
}  // namespace tandem
