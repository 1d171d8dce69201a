// engine/plan/nvme_disk.hpp — checks and measures the disk for optimizer state and weights, before
// anything is written.
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

/// Returns the free bytes. Throws user_error if `path` is not a folder that this process may write
/// to, or lies in memory or on the network and the options do not allow that.
[[nodiscard]] MemoryLimit room_on_nvme(const NvmeOptions& options);

/// Returns the name of a file system, by statfs' number, if it keeps files in memory or on another
/// machine; else empty.
[[nodiscard]] std::string why_no_disk(long file_system);

/// Bytes per second, in slices as updates use them, a few at a time.
struct DiskRates {
  double each_way = 0;  // where as much is written back as is read
  double read = 0;      // alone
  double write = 0;     // likewise

  /// Returns the time for these bytes: reads and writes run simultaneously as far as there are
  /// both, the rest alone.
  [[nodiscard]] double seconds(double bytes_read, double bytes_written) const;
};

/// Measures beside a computing thread, in a temporary file of about that size; `slice`: the sizes
/// of a slice's arrays.
[[nodiscard]] DiskRates measure_disk_rates(const NvmeOptions& options, FileIo::Backend backend,
                                           const StateSizes& slice, std::size_t bytes);

/// measure_disk_rates() through the user's file of speeds.
[[nodiscard]] DiskRates disk_rates(const NvmeOptions& options, FileIo::Backend backend,
                                   const StateSizes& slice);

/// Returns a line with the bytes that a step moves; with `rates` (disk_rates()) also the disk's
/// time for them, and the bytes that it writes in a day.
[[nodiscard]] std::string traffic_text(const NvmeOptions& options, const MemoryPlan& plan,
                                       const std::optional<DiskRates>& rates);

}  // namespace tandem
