// engine/placement/placement.hpp — where each unit's optimizer state lies: as the user says, or so
// that the step is shortest.
//
// The solver knows, for each unit, the bytes that its update moves and that its placement takes on
// the device, and for each placement the step time that a small simulation of the schedule predicts
// (placement_model.hpp). The time between a unit's gradient and its next use differs: the first
// units in forward order get their gradients last and are needed first (the embedding has no time
// at all). So units go to the device from the first one on; streamed units are spread among the
// others, so that pool and link are both busy all the time.
// Invariant: pure functions; the same problem gives the same placements on every rank. A placement
// changes no bit of any result.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"

namespace tandem {

/// Returns the share of the optimizer's bytes that stays on the host: of the options, else of the
/// config; nullopt if neither has one.
[[nodiscard]] std::optional<double> offload_ratio_of(const Config& config,
                                                     const EngineOptions& options);

/// Returns the options with the config's settings for NVMe: state lies there if the config's device
/// is "nvme" and the options leave the placement open. Throws user_error if no folder is given.
[[nodiscard]] EngineOptions with_nvme_of(const Config& config, EngineOptions options);

/// Whether the caller gave a folder for the state that does not fit into host memory.
[[nodiscard]] bool overflows_to_nvme(const EngineOptions& options);

/// Throws user_error if the CPU computes and the options (with_nvme_of()) ask for device memory, or
/// ask for a share of state to leave the host without a destination.
void require_possible_placements(const EngineOptions& options);

/// Returns the options; with an optimizer that updates jointly (updates_jointly()), changed so that
/// state stays on the host or on NVMe. Throws user_error if they ask for another placement.
[[nodiscard]] EngineOptions on_host_if_joint(const Config& config, EngineOptions options);

/// Returns placements by --placement and --offload_ratio alone; empty: all on the host. `ratio`
/// counts bytes: units leave the host from the first one on as long as at least that share stays; a
/// unit that is too large for the rest is skipped. To NVMe they go from the last one on, whose
/// gradients come first and whose weights are needed last.
[[nodiscard]] std::vector<StatePlacement> forced_placements(const Model& model, Placement placement,
                                                            std::optional<double> ratio);

/// "blocks 0-7 on the device, blocks 8-11 streamed, all others on the host", by the units' names:
/// neighbours that differ in one number are a range.
[[nodiscard]] std::string placements_text(const Model& model,
                                          std::span<const StatePlacement> placements);

}  // namespace tandem
