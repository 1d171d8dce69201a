// engine/plan/nvme_disk.hpp — the disk that is to hold optimizer state and weights, before anything
// is written.
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "actors/kernels/update/state_memory.hpp"
#include "engine/memory/memory_check.hpp"
#include "engine/memory/memory_plan.hpp"
#include "engine/types/nvme_options.hpp"
#include "runtime/io/file_io.hpp"

namespace tandem {

/// The bytes that are free there. Throws user_error where `path` is no folder that this process may
/// write to, or lies in memory or on the network and the options do not allow that.
[[nodiscard]] MemoryLimit room_on_nvme(const NvmeOptions& options);

/// A file system that keeps its files in memory, or on another machine, by statfs' number for it;
/// else empty.
[[nodiscard]] std::string why_no_disk(long file_system);

/// Bytes a second that pass in slices as updates have them, a few at a time.
struct DiskRates {
  double each_way = 0;  // where as much is written back as is read
  double read = 0;      // alone
  double write = 0;     // likewise

  /// As much as there is both of goes side by side, the rest alone.
  [[nodiscard]] double seconds(double bytes_read, double bytes_written) const;
};

/// Measured here and now beside a thread that computes, in a file of about that size, which is gone
/// afterwards; `slice`: the sizes of a slice's arrays.
[[nodiscard]] DiskRates measure_disk_rates(const NvmeOptions& options, FileIo::Backend backend,
                                           const StateSizes& slice, std::size_t bytes);

/// measure_disk_rates() through the user's file of speeds.
[[nodiscard]] DiskRates disk_rates(const NvmeOptions& options, FileIo::Backend backend,
                                   const StateSizes& slice);

/// Tells the bytes that a step moves; with `rates` (disk_rates()) also how long the disk takes for
/// them, and the bytes that it writes in a day.
[[nodiscard]] std::string traffic_text(const NvmeOptions& options, const MemoryPlan& plan,
                                       const std::optional<DiskRates>& rates);

}  // namespace tandem
