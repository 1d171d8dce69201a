#include "runtime/sim/sim_disk.hpp"

#include <cerrno>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

namespace tandem {
namespace {

using Bytes = std::vector<std::byte>;
using Names = std::vector<std::string>;

Bytes bytes_of(std::string_view text) {
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::shared_ptr<SimDisk::Node> opened(SimDisk& disk, const std::string& path, OpenMode mode) {
  std::shared_ptr<SimDisk::Node> file;
  EXPECT_EQ(disk.open(path, mode, file), 0) << path;
  return file;
}

void write(SimDisk& disk, const std::string& path, std::string_view text) {
  const Bytes bytes = bytes_of(text);
  EXPECT_EQ(disk.write(*opened(disk, path, OpenMode::kCreate), 0, bytes.data(), bytes.size()),
            std::ssize(bytes));
}

TEST(SimDisk, AnswersAsASystemDoes) {
  SimDisk disk({.capacity_bytes = 10});
  std::shared_ptr<SimDisk::Node> file;
  EXPECT_EQ(disk.open("none/file", OpenMode::kCreate, file), -ENOENT);
  EXPECT_EQ(disk.make_folder("none/folder"), -ENOENT);
  EXPECT_EQ(disk.make_folder("a"), 0);
  EXPECT_EQ(disk.make_folder("a"), -EEXIST);
  EXPECT_EQ(disk.open("a", OpenMode::kRead, file), -EISDIR);
  EXPECT_EQ(disk.open("a/file", OpenMode::kUpdate, file), -ENOENT);
  write(disk, "a/file", "text");
  EXPECT_EQ(disk.open("a/file/x", OpenMode::kCreate, file), -ENOENT);
  EXPECT_EQ(disk.remove("a", false), -EISDIR);
  EXPECT_EQ(disk.remove("a/file", true), -ENOTDIR);
  EXPECT_EQ(disk.remove("a", true), -ENOTEMPTY);
  EXPECT_EQ(disk.remove("b", true), -ENOENT);
  EXPECT_EQ(disk.make_folder("b"), 0);
  EXPECT_EQ(disk.rename("b", "a"), -ENOTEMPTY);
  EXPECT_EQ(disk.rename("a/file", "b"), -EISDIR);
  EXPECT_EQ(disk.rename("b", "a/file"), -ENOTDIR);
  EXPECT_EQ(disk.rename("a", "b"), 0) << "an empty folder is replaced";
  EXPECT_EQ(*disk.find("b/file"), bytes_of("text"));
  EXPECT_EQ(disk.exchange("b", "a"), -ENOENT);
  Names names;
  EXPECT_EQ(disk.list_folder("b", names), 0);
  EXPECT_EQ(names, Names{"file"});
  EXPECT_EQ(disk.list_folder("b/file", names), -ENOTDIR);
  EXPECT_EQ(disk.free_bytes(), 6U);
  EXPECT_EQ(disk.reserve(*opened(disk, "b/more", OpenMode::kCreate), 7), -ENOSPC);
  EXPECT_EQ(disk.reserve(*opened(disk, "b/more", OpenMode::kCreate), 6), 0);
  EXPECT_EQ(disk.free_bytes(), 0U);
}

/// Every disk that a power cut can leave behind, as "name=text" of those files that are there.
std::set<std::string> after_cuts(const SimDisk& disk, const Names& files) {
  std::size_t pieces = 0;
  std::set<std::string> found;
  for (std::size_t subset = 0; subset == 0 || subset < std::size_t{1} << pieces; ++subset) {
    std::size_t piece = 0;
    const SimDisk left =
        disk.after_power_cut([&](const SimDisk::Piece&) { return (subset >> piece++ & 1) != 0; });
    pieces = std::max(pieces, piece);
    std::string text;
    for (const std::string& file : files) {
      if (const Bytes* bytes = left.find(file); bytes != nullptr) {
        text += file + "=" +
                std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()) + " ";
      }
    }
    found.insert(text);
  }
  return found;
}

TEST(SimDisk, APowerCutKeepsAnyPartOfWhatIsNotSynced) {
  SimDisk disk;
  disk.put("d/old", bytes_of("1"));
  write(disk, "d/new", "2");
  EXPECT_EQ(after_cuts(disk, {"d/old", "d/new"}),
            (std::set<std::string>{"d/old=1 ", "d/old=1 d/new= ", "d/old=1 d/new=2 "}));
  disk.fsync(*opened(disk, "d/new", OpenMode::kUpdate), false);
  EXPECT_EQ(after_cuts(disk, {"d/new"}), (std::set<std::string>{"", "d/new=2 "}))
      << "its name is not synced";
  EXPECT_EQ(disk.fsync_folder("d"), 0);
  EXPECT_EQ(after_cuts(disk, {"d/new"}), std::set<std::string>{"d/new=2 "});
  EXPECT_EQ(disk.rename("d/new", "d/old"), 0);
  EXPECT_EQ(after_cuts(disk, {"d/old", "d/new"}),
            (std::set<std::string>{"d/old=1 d/new=2 ", "d/old=2 "}))
      << "in one";
  EXPECT_EQ(disk.fsync_folder("d"), 0);
  opened(disk, "d/old", OpenMode::kCreate);
  EXPECT_EQ(after_cuts(disk, {"d/old"}), (std::set<std::string>{"d/old=2 ", "d/old= "}))
      << "emptied";
}

TEST(SimDisk, FoldersTakeTheirContentAlong) {
  SimDisk disk;
  disk.put("a/file", bytes_of("1"));
  disk.put("b/file", bytes_of("2"));
  EXPECT_EQ(disk.exchange("a", "b"), 0);
  EXPECT_EQ(after_cuts(disk, {"a/file", "b/file"}),
            (std::set<std::string>{"a/file=1 b/file=2 ", "a/file=2 b/file=1 "}));
  EXPECT_EQ(disk.fsync_folder(""), 0);
  EXPECT_EQ(disk.rename("a", "c"), 0);
  EXPECT_EQ(after_cuts(disk, {"a/file", "c/file"}),
            (std::set<std::string>{"a/file=2 ", "c/file=2 "}));
}

TEST(SimDisk, AFailedFsyncDropsWhatWasWritten) {
  SimDisk disk;
  disk.put("file", bytes_of("1"));
  const auto file = opened(disk, "file", OpenMode::kUpdate);
  const Bytes two = bytes_of("2");
  EXPECT_EQ(disk.write(*file, 0, two.data(), 1), 1);
  EXPECT_EQ(disk.fsync(*file, true), -EIO);
  EXPECT_EQ(disk.fsync(*file, false), 0) << "as the kernel says once it has told";
  EXPECT_EQ(*disk.find("file"), two);
  EXPECT_EQ(after_cuts(disk, {"file"}), (std::set<std::string>{"file=1 ", "file=2 "}));
}

}  // namespace
}  // namespace tandem
