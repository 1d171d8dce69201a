#include "engine/plan/nvme_disk.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "actors/memory/arena.hpp"
#include "actors/optimizer/file_updates.hpp"
#include "engine/placement/bandwidths.hpp"
#include "engine/types/capped.hpp"
#include "engine/types/stopwatch.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kSliceBytes = 12 * FileUpdates::kElementsAlignment;  // fp32, 16-bit weights
constexpr std::size_t kMeasuredBytes = 16 * kSliceBytes;

/// Every kSlices-th slice from `first` on, read and written back.
Task<> pass_slices(StateFile* file, std::byte* memory, std::size_t first) {
  const std::size_t step = FileUpdates::kSlices * kSliceBytes;
  for (std::size_t at = first * kSliceBytes; at + kSliceBytes <= file->size_bytes(); at += step) {
    const StateFile::Transfer slice{file->data() + at, memory, kSliceBytes};
    co_await file->read({slice});
    co_await file->write({slice});
  }
}

Task<> pass_all(StateFile* file, std::byte* memory) {
  Scope scope(EventLoop::current(), "state");
  for (std::size_t i = 0; i < FileUpdates::kSlices; ++i) {
    scope.spawn("slices", &pass_slices, file, memory + i * kSliceBytes, i);
  }
  co_await scope.join();
}

std::string new_name(const std::string& folder) {
  return fmt::format("{}/tandem-rate-{}-{}", folder, ::getpid(),
                     std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

double measure_state_rate(const NvmeOptions& options, FileIo::Backend backend, std::size_t bytes) {
  EventLoop loop({.name = "nvme rate"});
  FileIo io(loop, {.backend = backend,
                   .ring_entries = options.queue_depth,
                   .threads = options.threads,
                   .name = "nvme rate"});
  const std::size_t slices = std::max(bytes / kSliceBytes, FileUpdates::kSlices);
  StateFile file(slices * kSliceBytes);
  const HostBuffer memory(FileUpdates::kSlices * kSliceBytes);
  memory.touch();
  loop.run([](StateFile* made, FileIo* by, std::string path,
              std::size_t piece) -> Task<> { co_await made->open(by, std::move(path), piece); },
           &file, &io, new_name(options.path), options.block_bytes);
  loop.run(&pass_all, &file, memory.data());  // the first writes find no blocks of the disk
  const Stopwatch watch;
  loop.run(&pass_all, &file, memory.data());
  return static_cast<double>(file.size_bytes()) / watch.elapsed_s();
}

double state_rate(const NvmeOptions& options, FileIo::Backend backend) {
  struct stat told{};
  (void)::stat(options.path.c_str(), &told);
  const bool uring = backend == FileIo::Backend::kUring ||
                     (backend == FileIo::Backend::kAuto && FileIo::choose().uring);
  const std::string how = uring ? "io_uring" : fmt::format("{} threads", options.threads);
  return BandwidthCache::of_user().get(
      fmt::format("state on device {}, {} x {} bytes, {}", told.st_dev, options.queue_depth,
                  options.block_bytes, how),
      [&] { return measure_state_rate(options, backend, kMeasuredBytes); });
}

std::string traffic_text(const NvmeOptions& options, const MemoryPlan& plan,
                         std::optional<double> rate) {
  constexpr double kDay = 24 * 3600;
  const std::int64_t read = product_capped(plan.ranks_per_host, plan.nvme_read_bytes);
  const std::int64_t written = product_capped(plan.ranks_per_host, plan.nvme_written_bytes);
  // The rate is that of as many bytes each way at the same time.
  const auto seconds = [&] { return static_cast<double>(sum_capped(read, written)) / 2 / *rate; };
  return fmt::format("{} in {}; a step reads {} and writes {}{}", size_text(plan.nvme_total()),
                     options.path, size_text(read), size_text(written),
                     rate ? fmt::format(": {:.2f} s of the disk at {:.2f} GB/s each way "
                                        "(measured), and at most {:.1f} TB written a day",
                                        seconds(), *rate / 1e9, *rate * kDay / 1e12)
                          : "");
}

std::string why_no_disk(long file_system) {
  // Those without a name in linux/magic.h: CIFS, SMB2, Lustre, GPFS, BeeGFS.
  constexpr std::array<std::pair<unsigned long, const char*>, 12> kOthers = {
      {{TMPFS_MAGIC, "in memory (tmpfs)"},
       {RAMFS_MAGIC, "in memory (ramfs)"},
       {HUGETLBFS_MAGIC, "in memory (hugetlbfs)"},
       {NFS_SUPER_MAGIC, "on the network (NFS)"},
       {SMB_SUPER_MAGIC, "on the network (SMB)"},
       {0xff534d42, "on the network (CIFS)"},
       {0xfe534d42, "on the network (SMB2)"},
       {CEPH_SUPER_MAGIC, "on the network (Ceph)"},
       {V9FS_MAGIC, "on the network (9p)"},
       {0x0bd00bd0, "on the network (Lustre)"},
       {0x47504653, "on the network (GPFS)"},
       {0x19830326, "on the network (BeeGFS)"}}};
  const auto found =
      std::ranges::find(kOthers, static_cast<unsigned long>(file_system) & 0xffffffff,
                        &std::pair<unsigned long, const char*>::first);
  return found == kOthers.end() ? std::string() : std::string(found->second);
}

MemoryLimit room_on_nvme(const NvmeOptions& options) {
  struct statfs told{};
  if (::statfs(options.path.c_str(), &told) != 0 ||
      ::access((options.path + "/.").c_str(), W_OK | X_OK) != 0) {
    throw user_error("nvme",
                     "nvme_path is {}, which is no folder to write to: {}; give an existing one "
                     "with --nvme_path",
                     options.path, std::strerror(errno));
  }
  if (const std::string why = why_no_disk(told.f_type); !why.empty() && !options.any_disk) {
    throw user_error("nvme",
                     "nvme_path is {}, which lies {}; give a folder on a local disk, or say "
                     "--nvme_any_disk",
                     options.path, why);
  }
  return {.bytes = static_cast<std::int64_t>(told.f_bavail) * told.f_bsize,
          .source = "free in " + options.path};
}

}  // namespace tandem
