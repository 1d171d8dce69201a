// engine/metrics/comms_summary.hpp — what DeepSpeed's comms_logger reports: a table of each
// operation and message size.
//
// Names and columns are DeepSpeed's, and one of our own: exposed, the time for which the compute
// lane stood still. A message is what a rank hands in: its shard of an all-gather, the whole block
// of a reduction. Rates are of the whole block over all the operations' time, as nccl-tests defines
// them; averages are plain means.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/collectives/comms_log.hpp"
#include "engine/config/monitor_config.hpp"
#include "engine/types/model.hpp"

namespace tandem {

/// The log's options, as the config's block asks for them.
[[nodiscard]] CommsLog::Options comms_log_options(const CommsLoggerConfig& config);

struct CommsRow {
  std::string operation;  // with debug: and the unit that it was of
  std::int64_t ranks = 1;
  std::int64_t message_bytes = 0;
  std::int64_t block_bytes = 0;
  std::int64_t count = 0;
  double total_s = 0;
  double exposed_s = 0;
  double algorithm_gbps = 0;
  double bus_gbps = 0;
  // Where CommsSummary::compares_stragglers: of the latest operations, as many as were kept.
  std::int64_t compared = 0;
  double least_s = 0;      // sum of the shortest time that a rank had for each
  double straggler_s = 0;  // sum of this rank's time beyond that
};

struct CommsSummary {
  bool enabled = false;
  std::int64_t world_size = 1;
  std::vector<CommsRow> rows;  // by operation, then by size
  std::uint64_t left_out = 0;  // operations of sizes that were too many
  bool compares_stragglers = false;
};

/// The summary of a rank's logs (null: none) of a run of this model.
[[nodiscard]] CommsSummary summarise_comms(std::span<const CommsLog* const> logs,
                                           const Model& model, std::int64_t world_size);

/// The times of the latest operations, of all rows in the summary's order, in rank order: of each
/// rank as many as `mine`. Fills in what CommsRow says of stragglers for this rank.
void compare_stragglers(CommsSummary& summary, std::span<const float> mine,
                        std::span<const float> all);
/// This rank's part of that.
[[nodiscard]] std::vector<float> latest_times(std::span<const CommsLog* const> logs);

/// As log_summary() prints it.
[[nodiscard]] std::string comms_table(const CommsSummary& summary);
/// comms.json: {"world_size", "left_out", "rows": [...]}, fields as in CommsRow.
[[nodiscard]] std::string comms_json(const CommsSummary& summary);
/// "comm op: all_reduce | time (ms): 0.12 | msg size: 4.00 MB | ...".
[[nodiscard]] std::string comms_line(const CommsLog::Verbose& operation, const Model& model);

}  // namespace tandem
