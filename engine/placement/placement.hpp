// engine/placement/placement.hpp — which unit's optimizer state lies where: as the user says, or so
// that the step is shortest.
//
// The solver knows a unit by what its update moves and what its placement holds on the device, and
// a placement by the step time that a small simulation of the schedule predicts
// (placement_model.hpp). Units have no window of equal length: the first ones in forward order get
// their gradient last and are needed first (the embedding has none at all), so what goes to the
// device goes there from the first unit on; streamed units are spread among the rest, so that pool
// and link work side by side all the time.
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

/// Share of the optimizer's bytes that is to be on the host: of the options, else of the config;
/// absent: neither says so.
[[nodiscard]] std::optional<double> offload_ratio_of(const Config& config,
                                                     const EngineOptions& options);

/// The options with what the config says of NVMe: state lies there where its device is "nvme" and
/// the options leave the placement open. Throws user_error where there is no folder for it.
[[nodiscard]] EngineOptions with_nvme_of(const Config& config, EngineOptions options);

/// A folder that the caller gives is for what the host's memory does not hold.
[[nodiscard]] bool overflows_to_nvme(const EngineOptions& options);

/// Throws user_error where the CPU computes and the options (with_nvme_of()) ask for memory of an
/// accelerator, or for a share of state to leave the host and say nowhere to.
void require_possible_placements(const EngineOptions& options);

/// The options as they are, or, with an optimizer that updates jointly (updates_jointly()), such
/// that no state leaves the host, but for NVMe. Throws user_error where they ask for another place.
[[nodiscard]] EngineOptions on_host_if_joint(const Config& config, EngineOptions options);

/// By --placement and --offload_ratio alone; empty: all on the host. `ratio` counts bytes: units
/// leave the host from the first one on as long as at least that share stays; one that is too large
/// for what is left is passed over. To NVMe they leave from the last one on, whose gradients come
/// first and whose weights are needed last.
[[nodiscard]] std::vector<StatePlacement> forced_placements(const Model& model, Placement placement,
                                                            std::optional<double> ratio);

/// "blocks 0-7 on the device, blocks 8-11 streamed, all others on the host", by the units' names:
/// neighbours that differ in one number are a range.
[[nodiscard]] std::string placements_text(const Model& model,
                                          std::span<const StatePlacement> placements);

}  // namespace tandem
