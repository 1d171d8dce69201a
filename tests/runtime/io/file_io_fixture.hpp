// tests/runtime/io/file_io_fixture.hpp — the fixture of all tests of file operations, which run on
// both back ends.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "runtime/event_loop.hpp"
#include "runtime/io/faulty_files.hpp"
#include "runtime/io/file_io.hpp"
#include "tests/runtime/io/file_backends.hpp"

namespace tandem {

inline std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>(i * 131 + i / 257);
  }
  return data;
}

inline Task<> write_and_read_back(FileIo* io, std::string path, std::size_t bytes) {
  const auto data = pattern(bytes);
  IoFile file = co_await io->open(path, OpenMode::kReadWrite);
  co_await io->write(file, 0, data);
  std::vector<std::byte> back(bytes);
  EXPECT_EQ(co_await io->read(file, 0, back), bytes);
  EXPECT_TRUE(back == data);
  co_await io->close(std::move(file));
}

class FileIoTest : public ::testing::TestWithParam<FileIo::Backend> {
 protected:
  void SetUp() override {
    if (GetParam() == FileIo::Backend::kUring && !FileIo::choose().uring) {
      GTEST_SKIP() << "no io_uring: " << FileIo::choose().why;
    }
    try {  // tests make rings in a row, and the kernel gives their locked memory back late
      const FileIo rings[] = {FileIo(loop, options()), FileIo(loop, options()),
                              FileIo(loop, options()), FileIo(loop, options())};
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    files = std::make_unique<FileIo>(loop, options());
    std::string name = ::testing::TempDir() + "tandem_file_io_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override {
    if (!folder.empty()) {
      std::filesystem::remove_all(folder);
    }
  }
  static FileIo::Options options() { return {.backend = GetParam()}; }

  // The error that `factory` ends with.
  template <class Factory, class... Args>
  std::pair<std::string, int> error_of(Factory factory, Args... args) {
    try {
      loop.run(factory, files.get(), args...);
    } catch (const FileError& error) {
      return {error.what(), error.error_number()};
    }
    return {"no error", 0};
  }

  EventLoop loop;
  std::unique_ptr<FileIo> files;
  std::string folder;
};

inline FileIo::Options with(FileIo::Options options, std::size_t call_bytes_max,
                            unsigned entries = 128) {
  options.call_bytes_max = call_bytes_max;
  options.ring_entries = entries;
  return options;
}

inline const auto kBothBackends =
    ::testing::Values(FileIo::Backend::kUring, FileIo::Backend::kThreads);

}  // namespace tandem
