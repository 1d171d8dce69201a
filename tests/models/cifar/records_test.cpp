// CIFAR-10's files: two spellings of the same bytes, and every way in which a file can be wrong.
#include "models/cifar/records.hpp"

#include <array>
#include <string>

#include <gtest/gtest.h>

#include "models/cifar/dataset.hpp"
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

TEST(CifarRecords, ThePythonArchiveIsNamedWithWhatConvertsIt) {
  const TempDir folder;
  put(folder / "data_batch_1", "\x80\x04.");
  expect_error(
      [&] { read_cifar(folder.path()); },
      {"Python archive", "./tandem fetch dataset cifar10 --from " + folder.path().string()});
  fs::create_directories(folder / "a/cifar-10-batches-py");
  fs::rename(folder / "data_batch_1", folder / "a/cifar-10-batches-py/data_batch_1");
  expect_error([&] { read_cifar(folder / "a"); }, {"--from", "a/cifar-10-batches-py"});
  put(folder / "data_batch_1", "");
  put(folder / "data_batch_1.bin", records(2));
  put(folder / "test_batch.bin", records(1));
  EXPECT_EQ(read_cifar(folder.path()).train.size(), 2);
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

void expect_the_bytes_of(const fs::path& packed, std::int64_t images) {
  SCOPED_TRACE(packed.string());
  const TempDir folder;
  ASSERT_TRUE(test::unpack_xz(packed, folder / "test_batch.bin"));
  const CifarImages ours = read_cifar_file(packed);
  const CifarImages theirs = read_cifar_file(folder / "test_batch.bin");
  EXPECT_EQ(ours.size(), images);
  EXPECT_TRUE(ours.pixels == theirs.pixels && ours.labels == theirs.labels);
  const std::string whole = test::get(packed);
  expect_error([&] { unpack_xz(whole.substr(0, 100'000), "half", "dataset", 1 << 26); },
               {"half", "cut short"});
  std::string damaged = whole;
  damaged[50'000] = static_cast<char>(damaged[50'000] ^ 1);
  expect_error([&] { unpack_xz(damaged, "damaged", "dataset", 1 << 26); }, {"damaged"});
  expect_error([&] { unpack_xz(whole, "large", "dataset", 1'000'000); }, {"larger"});
}

/// As `xz` packs them, in one stream and in blocks, and as the published ones are.
TEST(CifarRecords, PackedFilesAreTheSameBytes) {
  if (std::system("xz --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "xz is not installed";
  }
  const TempDir folder;
  const CifarImages images = generated_cifar(1000, 1).train;
  std::string bytes;
  for (std::int64_t i = 0; i < images.size(); ++i) {
    bytes += static_cast<char>(images.labels[static_cast<std::size_t>(i)]);
    bytes.append(reinterpret_cast<const char*>(images.image(i)), kCifarPixels);
  }
  for (const char* options : {"-6", "-1 --block-size=500KiB --check=crc32"}) {
    put(folder / "data_batch_1.bin", bytes);
    const std::string command =
        std::string("xz -f ") + options + " '" + (folder / "data_batch_1.bin").string() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
    expect_the_bytes_of(folder / "data_batch_1.bin.xz", images.size());
  }
  if (const fs::path packed = test::shared("data/cifar-10-batches-bin/test_batch.bin.xz");
      fs::exists(packed)) {
    expect_the_bytes_of(packed, 10'000);
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
