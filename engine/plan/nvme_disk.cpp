#include "engine/plan/nvme_disk.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

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
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {

constexpr std::size_t kMeasuredBytes = std::size_t{256} << 20;

/// A pass over a file: slices whose arrays have these sizes.
struct Pass {
  StateSizes slice;
  bool reads = true;
  bool writes = true;
};

std::vector<StateFile::Transfer> transfers_of(const StateSizes& slice,
                                              Placed<const std::byte> in_file, std::byte* memory) {
  std::vector<StateFile::Transfer> transfers;
  std::size_t at = 0;
  for (const std::size_t bytes :
       {slice.master, slice.state[0], slice.state[1], slice.scale[0], slice.scale[1]}) {
    if (bytes > 0) {
      transfers.push_back({in_file + at, memory + at, bytes});
      at += round_up(bytes, kFileStateAlignment);
    }
  }
  return transfers;
}

/// Every kSlices-th slice from `first` on.
Task<> transfer_slices(StateFile* file, std::byte* memory, std::size_t first, Pass pass) {
  const std::size_t bytes = pass.slice.total(kFileStateAlignment);
  for (std::size_t at = first * bytes; at + bytes <= file->size_bytes();
       at += FileUpdates::kSlices * bytes) {
    const auto transfers = transfers_of(pass.slice, file->data() + at, memory + first * bytes);
    if (pass.reads) {
      co_await file->read(transfers);
    }
    if (pass.writes) {
      co_await file->write(transfers);
    }
  }
}

Task<> transfer_all(StateFile* file, std::byte* memory, Pass pass) {
  Scope scope(EventLoop::current(), "state");
  for (std::size_t i = 0; i < FileUpdates::kSlices; ++i) {
    scope.spawn("slices", &transfer_slices, file, memory, i, pass);
  }
  co_await scope.join();
}

/// A disk passes less while the machine computes than at rest (a tenth to a quarter less on two
/// CPUs), and a step's updates and layers are what it passes state beside.
void compute_until(const std::stop_token& stop, std::vector<float>* values) {
  while (!stop.stop_requested()) {
    for (float& value : *values) {
      value = value * 0.5F + 1;
    }
  }
}

std::string new_name(const std::string& folder) {
  return fmt::format("{}/tandem-rate-{}-{}", folder, ::getpid(),
                     std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

double DiskRates::seconds(double bytes_read, double bytes_written) const {
  const double both = std::min(bytes_read, bytes_written);
  return both / each_way + (bytes_read - both) / read + (bytes_written - both) / write;
}

DiskRates measure_disk_rates(const NvmeOptions& options, FileIo::Backend backend,
                             const StateSizes& slice, std::size_t bytes) {
  EventLoop loop({.name = "nvme rate"});
  FileIo io(loop, {.backend = backend,
                   .ring_entries = options.queue_depth,
                   .threads = options.threads,
                   .name = "nvme rate"});
  CpuPool pool(loop, {.name = "nvme rate"});  // of check sums
  const std::size_t slice_bytes = slice.total(kFileStateAlignment);
  StateFile file(std::max(bytes / slice_bytes, FileUpdates::kSlices) * slice_bytes);
  const HostBuffer memory(FileUpdates::kSlices * slice_bytes);
  memory.touch();
  loop.run([](StateFile* made,
              StateFile::Options how) -> Task<> { co_await made->open(std::move(how)); },
           &file,
           StateFile::Options{.io = &io,
                              .pool = &pool,
                              .path = new_name(options.path),
                              .piece_bytes = options.block_bytes});
  const auto rate_of = [&](Pass pass) {
    const Stopwatch watch;
    loop.run(&transfer_all, &file, memory.data(), pass);
    return static_cast<double>(file.size_bytes()) / watch.elapsed_s();
  };
  std::vector<float> values(std::size_t{4} << 20);
  std::jthread computing;
  if (machine::usable_cpus() > 1) {  // else the loop that asks the disk would wait for it
    computing = std::jthread(&compute_until, &values);
  }
  const Pass back{.slice = slice, .reads = false};
  (void)rate_of(back);  // the first writes find no blocks of the disk
  return {.each_way = rate_of({.slice = slice}),
          .read = rate_of({.slice = slice, .writes = false}),
          .write = rate_of(back)};
}

DiskRates disk_rates(const NvmeOptions& options, FileIo::Backend backend, const StateSizes& slice) {
  struct stat told{};
  (void)::stat(options.path.c_str(), &told);
  const bool uring = backend == FileIo::Backend::kUring ||
                     (backend == FileIo::Backend::kAuto && FileIo::choose().uring);
  const std::string how = uring ? "io_uring" : fmt::format("{} threads", options.threads);
  std::optional<DiskRates> measured;
  const auto rate = [&](const char* what, double DiskRates::* of) {
    return BandwidthCache::of_user().get(
        fmt::format("slices of {} {} on device {}, {} x {} bytes, {}, of {} MiB, beside computing",
                    slice.total(kFileStateAlignment), what, told.st_dev, options.queue_depth,
                    options.block_bytes, how, kMeasuredBytes >> 20),
        [&] {
          const auto room = static_cast<std::size_t>(room_on_nvme(options).bytes);
          measured = measured ? measured
                              : measure_disk_rates(options, backend, slice,
                                                   std::min(kMeasuredBytes, room / 2));
          return (*measured).*of;
        });
  };
  return {.each_way = rate("both ways", &DiskRates::each_way),
          .read = rate("read", &DiskRates::read),
          .write = rate("written", &DiskRates::write)};
}

std::string traffic_text(const NvmeOptions& options, const MemoryPlan& plan,
                         const std::optional<DiskRates>& rates) {
  constexpr double kDay = 24 * 3600;
  const auto of_all_ranks = [&](std::int64_t updating, std::int64_t computing) {
    return size_text(product_capped(plan.ranks_per_host, sum_capped(updating, computing)));
  };
  const NvmeBytes& updates = plan.nvme_updating;
  const NvmeBytes& rest = plan.nvme_computing;
  const std::string moved = fmt::format(
      "{} in {}; a step reads {} and writes {}", size_text(plan.nvme_total()), options.path,
      of_all_ranks(updates.read, rest.read), of_all_ranks(updates.written, rest.written));
  if (!rates) {
    return moved;
  }
  const auto seconds = [&](const NvmeBytes& bytes) {
    return static_cast<double>(plan.ranks_per_host) *
           rates->seconds(static_cast<double>(bytes.read), static_cast<double>(bytes.written));
  };
  const double updating = seconds(updates);
  const double computing = seconds(rest);
  return fmt::format(
      "{}: {:.3f} s of the disk for updates{} (measured: {:.2f} GB/s each "
      "way, {:.2f} of reads alone), and {:.1f} TB written a day at that rate",
      moved, updating, computing > 0 ? fmt::format(" and {:.3f} s beside the rest", computing) : "",
      rates->each_way / 1e9, rates->read / 1e9, rates->each_way * kDay / 1e12);
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
