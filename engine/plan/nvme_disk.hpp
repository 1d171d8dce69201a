// engine/plan/nvme_disk.hpp — the disk that is to hold optimizer state and weights, before anything
// is written.
//
// Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "engine/memory/memory_check.hpp"
#include "engine/memory/memory_plan.hpp"
#include "engine/types/nvme_options.hpp"
#include "runtime/io/file_io.hpp"

namespace tandem {

/// What is free there. Throws user_error where `path` is no folder that this process may write to,
/// or lies in memory or on the network and the options do not allow that.
[[nodiscard]] MemoryLimit room_on_nvme(const NvmeOptions& options);

/// A file system that keeps its files in memory, or on another machine, by statfs' number for it;
/// else empty.
[[nodiscard]] std::string why_no_disk(long file_system);

/// Bytes of state a second that pass as updates have them pass: read and written back, a few slices
/// at a time. Measured here and now, in a file of that size, which is gone afterwards.
[[nodiscard]] double measure_state_rate(const NvmeOptions& options, FileIo::Backend backend,
                                        std::size_t bytes);

/// measure_state_rate() through the user's file of speeds.
[[nodiscard]] double state_rate(const NvmeOptions& options, FileIo::Backend backend);

/// What a step moves; with `rate` (state_rate()) also how long the disk takes for it, and what that
/// writes in a day.
[[nodiscard]] std::string traffic_text(const NvmeOptions& options, const MemoryPlan& plan,
                                       std::optional<double> rate);

}  // namespace tandem
