// bench/io/io_bench.cpp — what reading a file costs: RB7 of the runtime's definitions.
// 4 KiB and 1 MiB at random places, one or sixteen on their way at a time: pread on the loop's own
// thread (the floor for depth 1, which holds the loop), FileIo on threads, FileIo on io_uring; out
// of the page cache, and past it (direct). The file lies in $TANDEM_BENCH_DIR, else /var/tmp.
// Paired figures: --benchmark_enable_random_interleaving=true
// --benchmark_repetitions=9. Asio's own files on io_uring are a switch of the whole program, so
// they are no peer in it.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/program.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"

namespace tandem {
namespace {

constexpr std::size_t kFileBytes = std::size_t{256} << 20;
constexpr std::size_t kAlignment = FileIo::kDirectAlignment;

using Memory = std::unique_ptr<std::byte, decltype([](std::byte* memory) { std::free(memory); })>;

Memory aligned(std::size_t bytes) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
  std::fill_n(memory.get(), bytes, std::byte{1});
  return memory;
}

// The file that everybody reads; gone when the program ends.
class TestFile {
 public:
  TestFile() {
    const char* folder = std::getenv("TANDEM_BENCH_DIR");
    path_ = fmt::format("{}/tandem_bench_io_XXXXXX", folder != nullptr ? folder : "/var/tmp");
    const int descriptor = ::mkstemp(path_.data());
    TANDEM_CHECK(descriptor >= 0, "a file can be made in TANDEM_BENCH_DIR");
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    const Memory piece = aligned(kPiece);
    for (std::size_t at = 0; at < kFileBytes; at += kPiece) {
      TANDEM_CHECK(::write(descriptor, piece.get(), kPiece) == static_cast<ssize_t>(kPiece),
                   "there is room for 256 MiB in TANDEM_BENCH_DIR");
    }
    ::fsync(descriptor);
    ::close(descriptor);
  }
  ~TestFile() { ::unlink(path_.c_str()); }
  TestFile(const TestFile&) = delete;
  TestFile& operator=(const TestFile&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

const std::string& test_file() {
  static const TestFile file;
  return file.path();
}

struct Case {
  std::size_t bytes;
  int depth;
  bool direct;
  [[nodiscard]] int reads() const noexcept { return bytes < 65536 ? 4096 : 128; }  // per iteration
};

// Places in the file, alike for everybody.
class Places {
 public:
  Places(std::size_t bytes, int reader) noexcept
      : bytes_(bytes), state_(static_cast<std::uint64_t>(reader) * 977 + 1) {}
  std::uint64_t next() noexcept {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (state_ >> 33) % (kFileBytes / bytes_) * bytes_;
  }

 private:
  std::size_t bytes_;
  std::uint64_t state_;
};

Task<> read_some(FileIo* io, const IoFile* file, std::span<std::byte> into, int reader, int count) {
  Places places(into.size(), reader);
  for (int i = 0; i < count; ++i) {
    const std::size_t bytes = co_await io->read(*file, places.next(), into);
    TANDEM_CHECK(bytes == into.size(), "the file is long enough");
  }
}

Task<> read_all(FileIo* io, const IoFile* file, std::byte* memory, Case what) {
  Scope scope(EventLoop::current());
  for (int i = 0; i < what.depth; ++i) {
    scope.spawn("reader", read_some, io, file,
                std::span(memory + static_cast<std::size_t>(i) * what.bytes, what.bytes), i,
                what.reads() / what.depth);
  }
  co_await scope.join();
}

void count(benchmark::State& state, const Case& what) {
  const auto reads = state.iterations() * what.reads();
  state.SetItemsProcessed(reads);
  state.SetBytesProcessed(reads * static_cast<std::int64_t>(what.bytes));
}

void by_file_io(benchmark::State& state, FileIo::Backend backend, Case what) {
  if (backend == FileIo::Backend::kUring && !FileIo::choose().uring) {
    state.SkipWithError(FileIo::choose().why.c_str());
    return;
  }
  EventLoop loop;
  FileIo io(loop, {.backend = backend});
  const Memory memory = aligned(what.bytes * static_cast<std::size_t>(what.depth));
  const IoFile file = loop.run(
      [](FileIo* files, bool direct) -> Task<IoFile> {
        if (direct) {
          co_return co_await files->open_direct(test_file(), OpenMode::kRead);
        }
        co_return co_await files->open(test_file(), OpenMode::kRead);
      },
      &io, what.direct);
  for (auto _ : state) {
    loop.run(read_all, &io, &file, memory.get(), what);
  }
  count(state, what);
}

void inline_pread(benchmark::State& state, Case what) {
  const int descriptor =
      ::open(test_file().c_str(), O_RDONLY | O_CLOEXEC | (what.direct ? O_DIRECT : 0));
  TANDEM_CHECK(descriptor >= 0, "the file can be opened");
  const Memory memory = aligned(what.bytes);
  for (auto _ : state) {
    Places places(what.bytes, 0);
    for (int i = 0; i < what.reads(); ++i) {
      const ssize_t bytes =
          ::pread(descriptor, memory.get(), what.bytes, static_cast<off_t>(places.next()));
      TANDEM_CHECK(bytes == static_cast<ssize_t>(what.bytes), "the file is long enough");
    }
  }
  ::close(descriptor);
  count(state, what);
}

template <class Function>
void add(const std::string& name, Function function) {
  benchmark::RegisterBenchmark(name.c_str(), function)->UseRealTime();
}

void add_all() {
  for (const bool direct : {false, true}) {
    for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{1} << 20}) {
      const std::string where =
          fmt::format("{}/{}", direct ? "direct" : "cached", bytes == 4096 ? "4KiB" : "1MiB");
      for (const int depth : {1, 16}) {
        const Case what{.bytes = bytes, .depth = depth, .direct = direct};
        const std::string name = fmt::format("{}/depth:{}", where, depth);
        if (depth == 1) {
          add(name + "/pread", [what](benchmark::State& state) { inline_pread(state, what); });
        }
        add(name + "/threads", [what](benchmark::State& state) {
          by_file_io(state, FileIo::Backend::kThreads, what);
        });
        add(name + "/uring",
            [what](benchmark::State& state) { by_file_io(state, FileIo::Backend::kUring, what); });
      }
    }
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::bench::Suite suite(argc, argv,
                             "reading a file: io_uring and threads beside blocking calls");
  suite.begin();
  tandem::add_all();
  return suite.run();
}
