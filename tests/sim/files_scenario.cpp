// Files through a disk with faults: what is said to be written is there, also after a crash, and
// every failure is said.
#include <cerrno>
#include <memory>
#include <vector>

#include "runtime/io/file_io.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/sleep.hpp"
#include "tests/sim/harness.hpp"

namespace tandem::sim_test {
namespace {

struct Writer {
  Run* run;
  FileIo* io;
  Random random;
  std::string path;
  std::vector<std::byte> content = {};
  bool durable = false;  // all of it was said to be on the medium
  int error = 0;

  static Task<> work(Writer* self) {
    try {
      co_await self->write();
      co_await self->read_back();
    } catch (const FileError& error) {
      self->error = error.error_number();
    }
  }

  Task<> write() {
    content.resize(1 + random.below(6000));
    for (std::byte& b : content) {
      b = static_cast<std::byte>(random.next());
    }
    IoFile file = co_await io->open(path + ".tmp", OpenMode::kCreate);
    for (std::size_t at = 0; at < content.size();) {
      const std::size_t piece = std::min<std::size_t>(content.size() - at, 1 + random.below(3000));
      co_await io->write(file, at, std::span(content).subspan(at, piece));
      at += piece;
    }
    co_await io->fsync(file);
    co_await io->close(std::move(file));
    co_await io->rename(path + ".tmp", path);
    co_await io->fsync_folder("disk");
    durable = true;
  }

  Task<> read_back() {
    IoFile file = co_await io->open(path, OpenMode::kRead);
    const std::uint64_t size = co_await io->size(file);
    run->require(size == content.size(), "{} has {} bytes, not {}", path, size, content.size());
    std::vector<std::byte> back(content.size());
    for (std::size_t at = 0; at < back.size();) {
      const std::size_t piece = std::min<std::size_t>(back.size() - at, 1 + random.below(2000));
      const std::size_t got = co_await io->read(file, at, std::span(back).subspan(at, piece));
      run->require(got == piece, "a read of {} bytes got {}", piece, got);
      at += piece;
    }
    run->require(back == content, "{} does not hold what was written", path);
    const std::size_t past = co_await io->read(file, content.size(), std::span(back).first(1));
    run->require(past == 0, "a read past the end got {} bytes", past);
    co_await io->close(std::move(file));
  }
};

}  // namespace

std::uint64_t rehearse_files(std::uint64_t seed) {
  Run run("files", seed, 1);
  const bool small = run.random.chance(0.3);
  const bool broken = run.random.chance(0.2);
  SimDisk disk({.capacity_bytes = small ? 4000 + run.random.below(12'000) : UINT64_MAX});
  disk.put_folder("disk");
  auto backend =
      std::make_unique<SimFiles>(run.world, 0, disk,
                                 SimFiles::Faults{.short_transfer = run.random.uniform() * 0.6,
                                                  .interrupted = run.random.uniform() * 0.3,
                                                  .busy = run.random.uniform() * 0.3,
                                                  .io_error = broken ? 0.05 : 0});
  SimFiles& files = *backend;
  FileIo io(run.world.loop(0), std::move(backend));
  Scope scope(run.world.loop(0), Name("writers"));
  run.watched.push_back(&scope);
  std::vector<std::unique_ptr<Writer>> writers;
  const std::uint64_t count = 1 + run.random.below(4);
  for (std::uint64_t i = 0; i < count; ++i) {
    writers.push_back(std::make_unique<Writer>(
        Writer{&run, &io, run.random.fork(i), fmt::format("disk/file {}", i)}));
    scope.spawn("writer", &Writer::work, writers.back().get());
  }
  run.until("the writers end", [&] { return scope.running() == 0; });
  run.require(scope.failures().empty(), "a writer failed");
  run.require(files.open_files() == 0, "{} files are left open", files.open_files());
  Random crash = run.random.fork("crash");
  disk.crash(crash);
  for (const auto& writer : writers) {
    if (writer->durable) {
      const std::vector<std::byte>* kept = disk.find(writer->path);
      run.require(kept != nullptr && *kept == writer->content,
                  "{} was synced and is not there after a crash", writer->path);
    }
    run.require(writer->error == 0 || (writer->error == ENOSPC && small) ||
                    (writer->error == EIO && broken),
                "{} failed with errno {}", writer->path, writer->error);
    run.require(writer->durable || writer->error != 0, "{} was neither written nor refused",
                writer->path);
  }
  run.require_quiet();
  return run.world.log().hash();
}

}  // namespace tandem::sim_test
