// Gathers and reductions of what lies in a state file: a disk that fails or is full ends them with
// an error that names the unit and what of it, in either way through memory.
#include "actors/collectives/state_file_backend.hpp"

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/memory/arena.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/faulty_files.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

constexpr std::size_t kElements = std::size_t{6} << 16;  // more than one slice of calls
constexpr std::size_t kBytes = kElements * sizeof(float);

/// A shard and an accumulator in a file, one behind the other.
struct FileWorld {
  test::TempDir folder;
  EventLoop loop{EventLoop::Options{.name = "state file backend"}};
  CpuPool pool{loop, {.threads = 1}};
  FaultyFiles* faults = nullptr;
  std::optional<FileIo> io;
  StateFile file{2 * kBytes};
  SelfBackend inner{pool};
  HostBuffer block{kBytes};
  HostBuffer shard_buffer{kBytes};
  HostBuffer accumulator_buffer{kBytes};
  std::optional<StateFileBackend> backend;

  explicit FileWorld(bool straight) {
    auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
    faults = faulty.get();
    io.emplace(loop, std::move(faulty));
    loop.run(
        [](FileWorld* w) -> Task<> {
          co_await w->file.open({.io = &*w->io,
                                 .pool = &w->pool,
                                 .path = w->folder / "state",
                                 .piece_bytes = std::size_t{256} << 10});
        },
        this);
    backend.emplace(StateFileBackend::Options{
        .inner = &inner,
        .file = &file,
        .shard_buffer = straight ? nullptr : shard_buffer.data(),
        .accumulator_buffer = straight ? nullptr : accumulator_buffer.data(),
        .name_of = [this](Placed<const std::byte> array) {
          return std::string(array == file.data() ? "weights" : "gradient") + " of \"block 3\"";
        }});
  }
  Placed<std::byte> accumulator() { return file.data() + kBytes; }
  void gather() {
    loop.run(
        [](FileWorld* w) -> Task<> {
          co_await w->backend->all_gather(
              {.shard = w->file.data(), .block = w->block.data(), .shard_bytes = kBytes});
        },
        this);
  }
  GradientNorm reduce(AccumulateMode mode) {
    return loop.run(
        [](FileWorld* w, AccumulateMode how) -> Task<GradientNorm> {
          co_return co_await w->backend->reduce_scatter_add({.block = w->block.data(),
                                                             .accumulator = w->accumulator(),
                                                             .shard_elements = kElements,
                                                             .mode = how,
                                                             .want_norm = true});
        },
        this, mode);
  }
  /// The n-th call of that kind fails from now on.
  void fail(FileRequest::Kind kind, int number, int nth) {
    faults->set_rule([kind, number, nth, n = 0](const FileOp& op, std::uint64_t) mutable {
      return FileFault{.error_number = op.request.kind == kind && ++n == nth ? number : 0};
    });
  }
};

TEST(StateFileBackend, AFaultNamesWhatWasReadOrWritten) {
  for (const bool straight : {true, false}) {
    FileWorld world(straight);
    world.fail(FileRequest::Kind::kRead, EIO, 3);
    test::expect_error([&] { world.gather(); },
                       {"[nvme] cannot read the weights of \"block 3\"", std::strerror(EIO)},
                       ExitCode::kFailure);
    for (const int number : {EIO, ENOSPC}) {
      world.fail(FileRequest::Kind::kWrite, number, 2);
      test::expect_error([&] { (void)world.reduce(AccumulateMode::kOverwrite); },
                         {"[nvme] cannot write the gradient of \"block 3\"", std::strerror(number)},
                         ExitCode::kFailure);
    }
  }
}

TEST(StateFileBackend, AFaultOfWhatIsAddedToNamesIt) {
  FileWorld world(/*straight=*/false);
  world.fail(FileRequest::Kind::kRead, EIO, 1);
  test::expect_error([&] { (void)world.reduce(AccumulateMode::kAdd); },
                     {"[nvme] cannot read the gradient of \"block 3\""}, ExitCode::kFailure);
}

}  // namespace
}  // namespace tandem
