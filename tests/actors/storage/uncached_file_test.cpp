#include "actors/storage/uncached_file.hpp"

#include <cerrno>

#include "runtime/io/faulty_files.hpp"
#include "runtime/util/random.hpp"
#include "tests/actors/storage/checkpoint_fixture.hpp"

namespace tandem {
namespace {

using Kind = FileRequest::Kind;

constexpr std::uint64_t kFileBytes = (std::uint64_t{9} << 20) + 77;

/// Counts the bytes that go past the page cache; `refuse` is a file system that has no such way.
class UncachedFileTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    auto backend = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
    backend->set_rule([this](const FileOp& op, std::uint64_t) {
      if (op.request.kind == Kind::kOpen && op.request.direct && refuse) {
        return FileFault{.error_number = EINVAL};
      }
      if (op.is_transfer() && op.request.direct) {
        past_cache_bytes += op.bytes();
      }
      return FileFault{};
    });
    counted = std::make_unique<FileIo>(loop, std::move(backend));
    path = parent + "/file";
  }

  /// False where this file system has no way past the cache.
  bool can_pass_cache() {
    IoFile made = loop.run(open_plain, counted.get(), path);
    return loop.run(open_uncached, counted.get(), path, OpenMode::kUpdate).is_open();
  }
  static Task<IoFile> open_plain(FileIo* io, std::string path) {
    co_return co_await io->open(path, OpenMode::kCreate);
  }

  bool refuse = false;
  std::uint64_t past_cache_bytes = 0;
  std::unique_ptr<FileIo> counted;
  std::string path;
};

std::vector<std::byte> random_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  Random random(7);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random.next()); });
  return bytes;
}

/// Writes a copy of `from` in pieces that begin and end anywhere, the last ones first.
Task<> write_in_pieces(FileIo* io, std::string path, const std::vector<std::byte>* from,
                       CpuPool* pool) {
  IoFile made = co_await io->open(path, OpenMode::kCreate);
  co_await io->reserve(made, from->size());
  co_await io->close(std::move(made));
  UncachedFile file;
  co_await file.open(io, path, from->size());
  Random random(11);
  for (std::size_t end = from->size(); end > 0;) {
    const std::size_t size = std::min<std::size_t>(end, 1 + random.below(3'000'000));
    co_await file.write(end - size, std::span(*from).subspan(end - size, size), pool);
    end -= size;
  }
  co_await file.sync();
  co_await file.close();
}

TEST_F(UncachedFileTest, WritesWholeBlocksPastTheCacheFromAnyMemory) {
  if (!can_pass_cache()) {
    GTEST_SKIP() << "the file system of " << parent << " has no way past its page cache";
  }
  const std::vector<std::byte> bytes = random_bytes(kFileBytes);
  CpuPool pool(loop, {.threads = 2});
  for (CpuPool* copies_on : {static_cast<CpuPool*>(nullptr), &pool}) {
    past_cache_bytes = 0;
    loop.run(write_in_pieces, counted.get(), path, &bytes, copies_on);
    EXPECT_TRUE(std::ranges::equal(text_of(path), bytes, {},
                                   [](char c) { return static_cast<std::byte>(c); }));
    EXPECT_GT(past_cache_bytes, kFileBytes - kFileBytes / 20);
    EXPECT_EQ(past_cache_bytes % UncachedFile::block_bytes(), 0U);
  }
}

TEST_F(UncachedFileTest, WritesThroughTheCacheWhereThereIsNoOtherWay) {
  refuse = true;
  const std::vector<std::byte> bytes = random_bytes(kFileBytes);
  loop.run(write_in_pieces, counted.get(), path, &bytes, static_cast<CpuPool*>(nullptr));
  EXPECT_TRUE(std::ranges::equal(text_of(path), bytes, {},
                                 [](char c) { return static_cast<std::byte>(c); }));
  EXPECT_EQ(past_cache_bytes, 0U);
}

TEST_F(UncachedFileTest, LargeCheckpointsAreTheSameBytesEitherWayAndByAnyNumberOfWriters) {
  const bool can_pass = can_pass_cache();
  std::filesystem::remove(path);
  std::map<std::string, std::string> expected;
  for (const std::uint32_t world : {1U, 3U}) {
    for (const bool through_cache : {true, false}) {
      refuse = through_cache;
      past_cache_bytes = 0;
      CheckpointPlan plan = small_plan(parent, 20, 60'000);
      loop.run(save_checkpoint, counted.get(), plan, world, std::size_t{1'234'567});
      EXPECT_EQ(past_cache_bytes > 0, can_pass && !through_cache);
      EXPECT_TRUE(loop.run(faults_of, &files, plan.folder).empty());
      const auto content = content_of(parent);
      expected = expected.empty() ? content : expected;
      EXPECT_TRUE(content == expected) << world << " writers";
      std::filesystem::remove_all(plan.folder);
    }
  }
}

}  // namespace
}  // namespace tandem
