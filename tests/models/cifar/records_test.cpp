// CIFAR-10's files: three spellings of the same bytes, and every way in which a file can be wrong.
#include "models/cifar/records.hpp"

#include <array>
#include <string>

#include <gtest/gtest.h>

#include "models/cifar/dataset.hpp"
#include "models/cifar/pickle.hpp"
#include "models/cifar/xz.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::put;
using test::shared;
using test::TempDir;

/// `count` records whose bytes tell where they lie.
std::string records(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<char>(i % 10));
    for (std::int64_t p = 0; p < kCifarPixels; ++p) {
      bytes.push_back(static_cast<char>((i * 31 + p * 7) % 256));
    }
  }
  return bytes;
}

TEST(CifarRecords, TrainFilesInOrderAndTheTestFile) {
  const TempDir folder;
  put(folder / "data_batch_1.bin", records(12));
  put(folder / "data_batch_2.bin", records(3));
  put(folder / "test_batch.bin", records(5));
  const CifarData data = read_cifar(folder.path());
  EXPECT_EQ(data.train.size(), 15);
  EXPECT_EQ(data.test.size(), 5);
  EXPECT_EQ(data.train.labels[11], 1);
  EXPECT_EQ(data.train.image(1)[2], (31 + 14) % 256);
  EXPECT_EQ(data.train.image(12)[1], 7);
  EXPECT_NE(data.description.find("1 to 2 of 5"), std::string::npos) << data.description;
}

TEST(CifarRecords, TheArchivesFolderIsFoundInside) {
  const TempDir folder;
  fs::create_directories(folder / "cifar-10-batches-bin");
  put(folder / "cifar-10-batches-bin/data_batch_1.bin", records(2));
  put(folder / "cifar-10-batches-bin/test_batch.bin", records(1));
  EXPECT_EQ(read_cifar(folder.path()).train.size(), 2);
}

TEST(CifarRecords, FilesThatAreMissing) {
  const TempDir folder;
  expect_error([&] { read_cifar(folder / "nowhere"); }, {"[dataset]", "nowhere", "data_batch_1"});
  put(folder / "data_batch_1.bin", records(2));
  expect_error([&] { read_cifar(folder.path()); }, {"test_batch"});
  put(folder / "test_batch.bin", records(2));
  put(folder / "data_batch_3.bin", records(2));
  expect_error([&] { read_cifar(folder.path()); }, {"data_batch_3", "data_batch_2"});
}

TEST(CifarRecords, FilesThatAreDamaged) {
  const TempDir folder;
  const fs::path file = folder / "data_batch_1.bin";
  put(file, records(3).substr(1));
  expect_error([&] { read_cifar_file(file); }, {"data_batch_1.bin", "9218", "3073"});
  put(file, "");
  expect_error([&] { read_cifar_file(file); }, {"data_batch_1.bin", "0 bytes"});
  std::string bad = records(3);
  bad[2 * 3073] = 10;
  put(file, bad);
  expect_error([&] { read_cifar_file(file); }, {"record 2", "label 10"});
  put(folder / "data_batch_1.bin.xz", std::string(100, 'x'));
  expect_error([&] { read_cifar_file(folder / "data_batch_1.bin.xz"); }, {"not an .xz file"});
}

TEST(CifarRecords, PackedFilesAreTheSameBytes) {
  TANDEM_NEEDS_SHARED("data/cifar-10-batches-bin");
  const fs::path packed = shared("data/cifar-10-batches-bin/test_batch.bin.xz");
  const TempDir folder;
  if (!test::unpack_xz(packed, folder / "test_batch.bin")) {
    GTEST_SKIP() << "xz is not installed";
  }
  const CifarImages ours = read_cifar_file(packed);
  const CifarImages theirs = read_cifar_file(folder / "test_batch.bin");
  EXPECT_TRUE(ours.pixels == theirs.pixels && ours.labels == theirs.labels);
  std::array<int, 10> count{};
  for (const std::uint8_t label : ours.labels) {
    ++count[label];
  }
  for (const int n : count) {
    EXPECT_EQ(n, 1000);
  }
  const std::string whole = test::get(packed);
  expect_error([&] { unpack_xz(whole.substr(0, 100'000), "half", "dataset", 1 << 26); },
               {"half", "cut short"});
  std::string damaged = whole;
  damaged[50'000] = static_cast<char>(damaged[50'000] ^ 1);
  expect_error([&] { unpack_xz(damaged, "damaged", "dataset", 1 << 26); }, {"damaged"});
  expect_error([&] { unpack_xz(whole, "large", "dataset", 1'000'000); }, {"larger"});
}

// ---- the Python archive

constexpr std::string_view kMakePickles = R"(
import numpy, pickle, struct, sys
folder = sys.argv[1]
raw = open(folder + "/data_batch_1.bin", "rb").read()
rows = len(raw) // 3073
table = numpy.frombuffer(raw, numpy.uint8).reshape(rows, 3073)
labels = [int(x) for x in table[:, 0]]
data = numpy.ascontiguousarray(table[:, 1:])
for protocol in (2, 3, 4):
    with open(f"{folder}/p{protocol}", "wb") as f:
        pickle.dump({"batch_label": "one", "labels": labels, "data": data, "filenames": ["a.png"] * rows}, f, protocol)
with open(folder + "/bytes_keys", "wb") as f:
    pickle.dump({b"labels": labels, b"data": data}, f, 2)
# As Python 2's cPickle wrote the published files: byte strings throughout.
def text(s): return b"U" + bytes([len(s)]) + s
py2 = b"\x80\x02}q\x01(" + text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + b"]q\x04("
py2 += b"".join(b"K" + bytes([n]) for n in labels) + b"e" + text(b"data")
py2 += b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85" + text(b"b") + b"\x87Rq\x07"
py2 += b"(K\x01" + b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", 3072) + b"\x86"
py2 += b"cnumpy\ndtype\nq\x08" + text(b"u1") + b"K\x00K\x01\x87Rq\x09(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
py2 += b"T" + struct.pack("<I", rows * 3072) + data.tobytes() + b"tb" + text(b"filenames") + b"](" + text(b"a.png") + b"eu."
open(folder + "/python2", "wb").write(py2)
class Evil:
    def __reduce__(self): return (__import__("os").system, ("touch " + folder + "/executed",))
pickle.dump({"labels": labels, "data": Evil()}, open(folder + "/evil", "wb"), 2)
pickle.dump({"labels": labels, "data": data.astype(numpy.float32)}, open(folder + "/floats", "wb"), 2)
pickle.dump({"labels": labels[:-1], "data": data}, open(folder + "/fewer", "wb"), 2)
pickle.dump({"labels": labels[:-1] + [11], "data": data}, open(folder + "/eleven", "wb"), 2)
pickle.dump([1, 2], open(folder + "/list", "wb"), 2)
pickle.dump({"labels": labels, "data": data}, open(folder + "/p5", "wb"), 5)
)";

class CifarPickle : public testing::Test {
 protected:
  /// Makes the files with Python; false where there is none.
  bool make() {
    put(folder_ / "data_batch_1.bin", records(13));
    std::string log;
    const bool done = !test::python().empty() &&
                      test::run_python(folder_.path(), kMakePickles, folder_.path().string(), &log);
    EXPECT_TRUE(done || test::python().empty() || log.find("ModuleNotFound") != std::string::npos)
        << log;
    return done;
  }
  TempDir folder_;
};

TEST_F(CifarPickle, EveryWriterGivesTheSameImages) {
  if (!make()) {
    GTEST_SKIP() << "no .venv with numpy: run ./tandem setup";
  }
  const CifarImages expected = read_cifar_file(folder_ / "data_batch_1.bin");
  for (const char* name : {"p2", "p3", "p4", "bytes_keys", "python2"}) {
    const CifarImages got = read_cifar_file(folder_ / name);
    EXPECT_TRUE(got.pixels == expected.pixels && got.labels == expected.labels) << name;
  }
}

TEST_F(CifarPickle, NothingIsExecutedAndWhatIsNoBatchIsRefused) {
  if (!make()) {
    GTEST_SKIP() << "no .venv with numpy: run ./tandem setup";
  }
  expect_error([&] { read_cifar_file(folder_ / "evil"); }, {"evil", "system"});
  EXPECT_FALSE(fs::exists(folder_ / "executed"));
  expect_error([&] { read_cifar_file(folder_ / "floats"); }, {"floats", "array"});
  expect_error([&] { read_cifar_file(folder_ / "fewer"); }, {"fewer", "13", "12 labels"});
  expect_error([&] { read_cifar_file(folder_ / "eleven"); }, {"record 12", "label 11"});
  expect_error([&] { read_cifar_file(folder_ / "list"); }, {"list", "no dict"});
  expect_error([&] { read_cifar_file(folder_ / "p5"); }, {"p5", "protocol 5"});
}

TEST_F(CifarPickle, CutAnywhereOrChangedItIsAnErrorOrStillABatch) {
  if (!make()) {
    GTEST_SKIP() << "no .venv with numpy: run ./tandem setup";
  }
  for (const char* name : {"p2", "p4", "python2"}) {
    const std::string whole = test::get(folder_ / name);
    for (std::size_t length = 0; length < whole.size(); length += length < 400 ? 1 : 997) {
      expect_error([&] { read_pickled_batch(whole.substr(0, length), "cut", "dataset"); }, {"cut"});
    }
    for (std::size_t at = 0; at < 400; ++at) {
      for (const char change : {'\x01', '\x80', '\x7f'}) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ change);
        try {
          const PickledBatch batch = read_pickled_batch(changed, "changed", "dataset");
          EXPECT_EQ(static_cast<std::int64_t>(batch.data.size()), batch.rows * batch.columns);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::kUserInput) << error.what();
        }
      }
    }
  }
}

// ---- the generated set, micro-batches

TEST(CifarGenerated, TheSameBytesEveryTimeAndEveryClass) {
  const CifarData a = generated_cifar(200, 50);
  const CifarData b = generated_cifar(100, 50);
  EXPECT_TRUE(std::equal(b.train.pixels.begin(), b.train.pixels.end(), a.train.pixels.begin()));
  EXPECT_EQ(a.test.labels, b.test.labels);
  std::array<int, 10> count{};
  for (const std::uint8_t label : a.train.labels) {
    ++count.at(label);
  }
  for (const int n : count) {
    EXPECT_GT(n, 5);
  }
  EXPECT_NE(a.description.find("generated"), std::string::npos);
}

TEST(CifarDatasetTest, ImagesAsTheNetSeesThem) {
  auto images = std::make_shared<CifarImages>(generated_cifar(4, 1).train);
  images->pixels[2 * kCifarPixels] = 0;
  images->pixels[2 * kCifarPixels + 1] = 255;
  images->pixels[2 * kCifarPixels + 2] = 51;
  const CifarDataset dataset(images);
  const std::array<std::int64_t, 2> indices = {2, 0};
  const HostBatch batch = dataset.collate(indices);
  EXPECT_EQ(batch.feature_shape, (std::vector<std::int64_t>{2, 3, 32, 32}));
  EXPECT_EQ(batch.tokens, 2);
  EXPECT_EQ(batch.labels, (std::vector<std::int64_t>{images->labels[2], images->labels[0]}));
  EXPECT_EQ(batch.features[0], -1.0F);
  EXPECT_EQ(batch.features[1], 1.0F);
  EXPECT_FLOAT_EQ(batch.features[2], 51.0F / 255 * 2 - 1);
}

}  // namespace
}  // namespace tandem
