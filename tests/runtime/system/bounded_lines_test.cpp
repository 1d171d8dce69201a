// Lines of a file that a stranger wrote: whole, bounded, and never through a link.
#include "runtime/system/bounded_lines.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

using ::testing::ElementsAre;

class BoundedLinesTest : public ::testing::Test {
 protected:
  BoundedLinesTest() { std::filesystem::create_directories(folder_); }
  ~BoundedLinesTest() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  [[nodiscard]] std::string file(const std::string& text) const {
    std::ofstream(path("file"), std::ios::binary) << text;
    return path("file");
  }
  static std::vector<std::string> all_of(BoundedLines& lines) {
    std::vector<std::string> all;
    while (const auto line = lines.next()) {
      all.emplace_back(*line);
    }
    return all;
  }
  std::string folder_ = ::testing::TempDir() + "/lines." + std::to_string(::getpid());
};

TEST_F(BoundedLinesTest, GivesLinesWithTheirZeroBytesAndTheLastOneWithoutNewline) {
  const std::string text("a\n\0b\n\n\0\nlast", 12);
  BoundedLines lines(open_ordinary_file(file(text)));
  EXPECT_THAT(all_of(lines),
              ElementsAre("a", std::string("\0b", 2), "", std::string("\0", 1), "last"));
  EXPECT_FALSE(lines.is_whole());
  BoundedLines whole(open_ordinary_file(file("a\nb\n")));
  EXPECT_THAT(all_of(whole), ElementsAre("a", "b"));
  EXPECT_TRUE(whole.is_whole());
}

TEST_F(BoundedLinesTest, LeavesLongLinesOut) {
  const std::string longer(200'000, 'x');
  BoundedLines lines(open_ordinary_file(file("a\n" + longer + "\nb\n" + longer)), 100'000);
  EXPECT_THAT(all_of(lines), ElementsAre("a", "b"));
  EXPECT_EQ(lines.left_out(), 2U);
  EXPECT_FALSE(lines.is_whole());
}

TEST_F(BoundedLinesTest, UnpacksNoMoreThanItsBound) {
  const gzFile packed = gzopen(path("bomb").c_str(), "wb9");
  const std::string zeros(1 << 20, 'x');
  for (int mib = 0; mib < 64; ++mib) {
    gzwrite(packed, zeros.data(), static_cast<unsigned>(zeros.size()));
  }
  gzclose(packed);
  BoundedLines lines(open_ordinary_file(path("bomb")), 1 << 20, std::uint64_t{8} << 20);
  EXPECT_TRUE(all_of(lines).empty());
  EXPECT_TRUE(lines.is_exhausted());
  EXPECT_FALSE(lines.is_whole());
}

TEST_F(BoundedLinesTest, OpensNoLinkAndNoFifo) {
  std::filesystem::create_symlink(file("x\n"), path("link"));
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_LT(open_ordinary_file(path("link")).get(), 0);
  EXPECT_EQ(errno, ELOOP);
  for (const std::string& other : {path("fifo"), folder_, std::string("/dev/zero")}) {
    EXPECT_LT(open_ordinary_file(other).get(), 0);
    EXPECT_EQ(errno, EINVAL) << other;
  }
  EXPECT_LT(open_ordinary_file(path("none")).get(), 0);
  EXPECT_EQ(errno, ENOENT);
}

TEST(OneLine, SeveralLinesKeepTheirNewlinesAlone) {
  EXPECT_EQ(escaped_lines("a\x1b[1m\nb\r\n\xff"), "a\\x1b[1m\nb\\r\n\\xff");
  EXPECT_EQ(escaped_lines(""), "");
  EXPECT_EQ(escaped_lines("\n\n"), "\n\n");
}

}  // namespace
}  // namespace tandem
