// Folders, names and space: what FileIo does besides reading and writing.
#include <cerrno>
#include <filesystem>
#include <fstream>

#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/runtime/io/file_io_fixture.hpp"

namespace tandem {
namespace {

using Names = std::vector<std::string>;

class FileIoFolders : public FileIoTest {};

Task<> touch(FileIo* io, std::string path) {
  IoFile file = co_await io->open(std::move(path), OpenMode::kCreate);
  co_await io->close(std::move(file));
}

TEST_P(FileIoFolders, AreMadeListedAndRemoved) {
  loop.run(
      [](FileIo* io, std::string f) -> Task<> {
        co_await io->make_folder(f + "/made");
        EXPECT_EQ(co_await io->list_folder(f + "/made"), Names());
        co_await touch(io, f + "/made/b");
        co_await touch(io, f + "/made/a");
        co_await io->make_folder(f + "/made/inner");
        const Names all{"a", "b", "inner"};
        EXPECT_EQ(co_await io->list_folder(f + "/made"), all);
        co_await io->rename(f + "/made", f + "/moved");
        co_await io->remove(f + "/moved/a");
        co_await io->remove(f + "/moved/b");
        co_await io->remove_folder(f + "/moved/inner");
        co_await io->remove_folder(f + "/moved");
        EXPECT_EQ(co_await io->list_folder(f), Names());
      },
      files.get(), folder);
}

// The most harmful thing that a clean-up can do is to follow a link.
TEST_P(FileIoFolders, ATreeIsRemovedWithoutFollowingALink) {
  namespace fs = std::filesystem;
  const auto put = [](const fs::path& path) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "x";
  };
  put(folder + "/outside/deep/precious");
  put(folder + "/tree/a/b/c");
  put(folder + "/tree/file");
  fs::create_directory_symlink(folder + "/outside", folder + "/tree/a/link");
  fs::create_symlink(folder + "/outside/deep/precious", folder + "/tree/link");
  fs::create_symlink(folder + "/none", folder + "/tree/dangling");
  ASSERT_EQ(::mkfifo((folder + "/tree/pipe").c_str(), 0600), 0);
  fs::create_directory_symlink(folder + "/outside", folder + "/link");
  loop.run(
      [](FileIo* io, std::string f) -> Task<> {
        co_await io->remove_tree(f + "/link");
        co_await io->remove_tree(f + "/tree/");
        co_await io->remove_tree(f + "/none");
        EXPECT_EQ(co_await io->list_folder(f), Names(1, "outside"));
      },
      files.get(), folder);
  EXPECT_TRUE(fs::exists(folder + "/outside/deep/precious"));
}

TEST_P(FileIoFolders, WhatIsMountedWithinATreeStays) {
  namespace fs = std::filesystem;
  for (const char* part : {"/tree/mounted", "/tree/other"}) {
    fs::create_directories(folder + part);
  }
  fs::create_directory(folder + "/outside");
  std::ofstream(folder + "/outside/precious") << "x";
  const std::string place = folder + "/tree/mounted";
  if (::mount((folder + "/outside").c_str(), place.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "mounting needs more rights";
  }
  const auto [text, number] = error_of(
      [](FileIo* io, std::string f) -> Task<> { co_await io->remove_tree(f + "/tree"); }, folder);
  ::umount(place.c_str());
  EXPECT_EQ(number, EXDEV) << text;
  EXPECT_TRUE(fs::exists(folder + "/outside/precious"));
  EXPECT_FALSE(fs::exists(folder + "/tree/other")) << "one failure does not stop the rest";
}

TEST_P(FileIoFolders, APipeInAFilesPlaceHangsNobody) {
  ASSERT_EQ(::mkfifo((folder + "/pipe").c_str(), 0600), 0);
  for (const OpenMode mode : {OpenMode::kReadFile, OpenMode::kUpdate}) {
    EXPECT_EQ(error_of([](FileIo* io, std::string path,
                          OpenMode how) -> Task<> { (void)co_await io->open(path, how); },
                       folder + "/pipe", mode)
                  .first,
              "[file] cannot open " + folder + "/pipe: it is no regular file");
  }
}

TEST_P(FileIoFolders, ANewFileIsNoOtherOne) {
  std::ofstream(folder + "/there") << "precious";
  std::filesystem::create_symlink(folder + "/none", folder + "/link");
  for (const char* name : {"/there", "/link"}) {
    for (const OpenMode mode : {OpenMode::kNew, OpenMode::kPrivate}) {
      EXPECT_EQ(error_of([](FileIo* io, std::string path,
                            OpenMode how) -> Task<> { (void)co_await io->open(path, how); },
                         folder + name, mode)
                    .second,
                EEXIST)
          << name;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder + "/none"));
  loop.run(
      [](FileIo* io, std::string path) -> Task<> {
        co_await io->close(co_await io->open(path, OpenMode::kPrivate));
      },
      files.get(), folder + "/private");
  struct stat made{};
  ASSERT_EQ(::stat((folder + "/private").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777U, 0600U);
}

TEST_P(FileIoFolders, ErrorsNamePathAndOperation) {
  const auto [made, made_number] =
      error_of([](FileIo* io, std::string f) -> Task<> { co_await io->make_folder(f); }, folder);
  EXPECT_EQ(made, "[file] cannot make the folder " + folder + ": File exists");
  EXPECT_EQ(made_number, EEXIST);
  EXPECT_EQ(error_of([](FileIo* io,
                        std::string f) -> Task<> { (void)co_await io->list_folder(f + "/none"); },
                     folder)
                .first,
            "[file] cannot list the folder " + folder + "/none: No such file or directory");
  EXPECT_EQ(error_of(
                [](FileIo* io, std::string f) -> Task<> {
                  co_await touch(io, f + "/a");
                  co_await io->remove_folder(f);
                },
                folder)
                .first,
            "[file] cannot remove the folder " + folder + ": Directory not empty");
  EXPECT_EQ(error_of([](FileIo* io,
                        std::string f) -> Task<> { (void)co_await io->free_bytes(f + "/none"); },
                     folder)
                .first,
            "[file] cannot ask what is free at " + folder + "/none: No such file or directory");
  EXPECT_EQ(error_of([](FileIo* io,
                        std::string f) -> Task<> { co_await io->exchange(f + "/a", f + "/none"); },
                     folder)
                .first,
            "[file] cannot exchange " + folder + "/a with " + folder +
                "/none: No such file or directory");
}

TEST_P(FileIoFolders, TwoTakeEachOthersNames) {
  const auto [text, number] = error_of(
      [](FileIo* io, std::string f) -> Task<> {
        co_await io->make_folder(f + "/a");
        co_await io->make_folder(f + "/b");
        co_await touch(io, f + "/a/of a");
        co_await touch(io, f + "/b/of b");
        co_await io->exchange(f + "/a", f + "/b");
        EXPECT_EQ(co_await io->list_folder(f + "/a"), Names(1, "of b"));
        EXPECT_EQ(co_await io->list_folder(f + "/b"), Names(1, "of a"));
      },
      folder);
  if (number == EINVAL) {
    GTEST_SKIP() << "this file system cannot exchange";
  }
  EXPECT_EQ(text, "no error");
}

TEST_P(FileIoFolders, AnUpdateNeedsTheFile) {
  const auto update = [](FileIo* io, std::string f) -> Task<> {
    IoFile file = co_await io->open(f + "/file", OpenMode::kUpdate);
    co_await io->write(file, 1, pattern(3));
    co_await io->close(std::move(file));
  };
  EXPECT_EQ(error_of(update, folder).second, ENOENT);
  loop.run(touch, files.get(), folder + "/file");
  EXPECT_EQ(error_of(update, folder).first, "no error");
  EXPECT_EQ(std::filesystem::file_size(folder + "/file"), 4U);
}

TEST_P(FileIoFolders, SpaceIsReservedAndNeverTakenAway) {
  loop.run(
      [](FileIo* io, std::string f) -> Task<> {
        EXPECT_GT(co_await io->free_bytes(f), 0U);
        IoFile file = co_await io->open(f + "/file", OpenMode::kReadWrite);
        co_await io->reserve(file, 0);
        EXPECT_EQ(co_await io->size(file), 0U);
        co_await io->reserve(file, 100'000);
        EXPECT_EQ(co_await io->size(file), 100'000U);
        co_await io->reserve(file, 10);
        EXPECT_EQ(co_await io->size(file), 100'000U);
        std::vector<std::byte> back(100'000, std::byte{1});
        EXPECT_EQ(co_await io->read(file, 0, back), back.size());
        EXPECT_EQ(back, std::vector<std::byte>(100'000));
        co_await io->close(std::move(file));
      },
      files.get(), folder);
  const auto [text, number] = error_of(
      [](FileIo* io, std::string f) -> Task<> {
        IoFile file = co_await io->open(f + "/huge", OpenMode::kCreate);
        co_await io->reserve(file, std::uint64_t{1} << 50);
      },
      folder);
  EXPECT_TRUE(number == ENOSPC || number == EFBIG) << text;
  EXPECT_TRUE(text.starts_with("[file] cannot reserve the space of " + folder +
                               "/huge (1125899906842624 bytes): "))
      << text;
}

INSTANTIATE_TEST_SUITE_P(Both, FileIoFolders, kBothBackends, backend_of);

}  // namespace
}  // namespace tandem
