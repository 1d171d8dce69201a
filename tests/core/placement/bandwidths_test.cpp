// The measured speed of updates, and the file that keeps it: a cache that may be missing, broken or
// unwritable.
#include "engine/placement/bandwidths.hpp"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "actors/kernels/update/state_memory.hpp"
#include "runtime/util/build.hpp"
#include "tests/support/process/variable.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class BandwidthFile : public ::testing::Test {
 protected:
  BandwidthFile()
      : folder_(std::filesystem::temp_directory_path() /
                ("bandwidths-" + std::to_string(::getpid()))),
        path_((folder_ / "deeper" / "bandwidths.tsv").string()) {}
  ~BandwidthFile() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
    std::ofstream(path_) << text;
  }
  std::string text() {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  /// How often it measured; `value` is what a measurement gives.
  int asked(const std::string& key, double value, double expected) {
    int times = 0;
    const double got = BandwidthCache(path_).get(key, [&] {
      ++times;
      return value;
    });
    EXPECT_EQ(got, expected);
    return times;
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(BandwidthFile, IsMeasuredOnceForEachKey) {
  EXPECT_EQ(asked("a", 1.5e10, 1.5e10), 1);
  EXPECT_EQ(asked("a", 9, 1.5e10), 0);
  EXPECT_EQ(asked("ab", 3, 3), 1) << "a key is not the beginning of another";
  EXPECT_EQ(asked("a", 9, 1.5e10), 0);
  EXPECT_EQ(asked("ab", 9, 3), 0);
  // Nothing but the file is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "deeper"), {}), 1);
}

TEST_F(BandwidthFile, WhatIsBrokenIsMeasuredAnewAndMended) {
  for (const char* broken : {"", "something else\na\t5\n", "tandem bandwidths 2\na\tfast\n",
                             "tandem bandwidths 2\na\t\n", "tandem bandwidths 1\na\t-3\n",
                             "tandem bandwidths 2\na\tinf\n", "tandem bandwidths 1\na\t5x\n",
                             "tandem bandwidths 2\na", "\0\xff\xfe\n"}) {
    write(broken);
    EXPECT_EQ(asked("a", 7, 7), 1) << broken;
    EXPECT_EQ(asked("a", 9, 7), 0) << broken;
    EXPECT_THAT(text(), HasSubstr("\na\t7\n"));
    EXPECT_THAT(text(), Not(HasSubstr("fast")));
  }
}

TEST_F(BandwidthFile, OtherLinesAreKept) {
  write("tandem bandwidths 2\nother\t4\na\tbroken\n");
  EXPECT_EQ(asked("a", 7, 7), 1);
  EXPECT_EQ(asked("other", 9, 4), 0);
}

TEST_F(BandwidthFile, TheRateOfAStarStandsForKeysWithoutALine) {
  write("tandem bandwidths 2\n*\t4\na\t5\n");
  EXPECT_EQ(asked("a", 9, 5), 0);
  EXPECT_EQ(asked("b", 9, 4), 0);
  EXPECT_EQ(asked("b, ahead", 9, 4), 0);
}

TEST_F(BandwidthFile, NeedNotBeWritable) {
  EXPECT_EQ(BandwidthCache("").get("a", [] { return 7.0; }), 7);
  EXPECT_EQ(BandwidthCache("/proc/absent/bandwidths.tsv").get("a", [] { return 7.0; }), 7);
  std::filesystem::create_directories(path_);  // a folder where the file should be
  EXPECT_EQ(asked("a", 7, 7), 1);
  EXPECT_EQ(asked("a", 8, 8), 1);
}

TEST_F(BandwidthFile, LiesInTheUsersCache) {
  const test::Variable own("TANDEM_CACHE", std::nullopt);
  const test::Variable home("HOME", "/some/home");
  const test::Variable cache("XDG_CACHE_HOME", "/some/cache");
  EXPECT_EQ(BandwidthCache::of_user().path(), "/some/cache/tandem/bandwidths.tsv");
  cache.set(std::nullopt);
  EXPECT_EQ(BandwidthCache::of_user().path(), "/some/home/.cache/tandem/bandwidths.tsv");
}

TEST(UpdateSpeed, CountsWhatAnUpdateReadsAndWrites) {
  const UpdateKernel fp32{.threads = 1};
  EXPECT_NEAR(update_bytes_per_element(fp32), 4 * 2 + 8 * 2 + 4, 1e-3);
  UpdateKernel bf16 = fp32;
  bf16.weight = bf16.gradient = DType::kBF16;
  EXPECT_NEAR(update_bytes_per_element(bf16), 12 * 2 + 2 + 2, 1e-3);
  bf16.layout = StateLayout::kSplit;
  EXPECT_NEAR(update_bytes_per_element(bf16), 10 * 2 + 2 + 4, 1e-3);
}

TEST(UpdateSpeed, IsMeasuredWithTheRealKernel) {
  if (kAddressSanitizer || kThreadSanitizer) {
    GTEST_SKIP() << "a sanitizer's speed is no processor's, and takes minutes";
  }
  UpdateKernel kernel{.threads = 1};
  kernel.weight = kernel.gradient = DType::kBF16;
  EXPECT_GT(measure_update_speed(kernel), 1e7);
  EXPECT_NE(cache_key(kernel), cache_key({.threads = 2}));
  UpdateKernel ahead = kernel;
  ahead.speculative = true;
  EXPECT_NE(cache_key(kernel), cache_key(ahead));
  for (const DType weight : {DType::kF32, DType::kBF16}) {
    for (const StateLayout layout : {StateLayout::kFp32, StateLayout::kSplit, StateLayout::kInt8}) {
      ahead.weight = ahead.gradient = weight;
      ahead.layout = layout;
      if (supports(ahead.update.kind, layout, weight)) {
        EXPECT_GT(measure_update_speed(ahead), 1e7);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
