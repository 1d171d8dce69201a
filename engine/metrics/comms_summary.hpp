// engine/metrics/comms_summary.hpp — what DeepSpeed's comms_logger reports: a table of each
// operation and message size.
//
// Names and columns are DeepSpeed's, with one more: exposed, the time for which the compute lane
// waited. A message's size is that of a rank's input: its shard for an all-gather, the whole
// block for a reduction. Rates divide the whole block by the operations' time, as in nccl-tests;
// averages are plain means.
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
  std::string operation;  // with debug: and its unit
  std::int64_t ranks = 1;
  std::int64_t message_bytes = 0;
  std::int64_t block_bytes = 0;
  std::int64_t count = 0;
  double total_s = 0;
  double exposed_s = 0;
  double algorithm_gbps = 0;
  double bus_gbps = 0;
  // If CommsSummary::compares_stragglers: the number of compared operations, the latest ones that
  // were kept.
  std::int64_t compared = 0;
  double least_s = 0;      // sum of the shortest time of any rank for each
  double straggler_s = 0;  // sum of this rank's time beyond that
};

struct CommsSummary {
  bool enabled = false;
  std::int64_t world_size = 1;
  std::vector<CommsRow> rows;  // by operation, then by size
  std::uint64_t left_out = 0;  // operations not counted, because there were too many sizes
  bool compares_stragglers = false;
};

/// The summary of a rank's logs (null: none) of a run of this model.
[[nodiscard]] CommsSummary summarise_comms(std::span<const CommsLog* const> logs,
                                           const Model& model, std::int64_t world_size);

/// Fills in CommsRow's figures on stragglers for this rank. `all`: latest_times() of all ranks, in
/// rank order, each as long as `mine`.
void compare_stragglers(CommsSummary& summary, std::span<const float> mine,
                        std::span<const float> all);
/// Returns this rank's times of its latest operations, of all rows in the summary's order.
[[nodiscard]] std::vector<float> latest_times(std::span<const CommsLog* const> logs);

/// Returns the table as log_summary() prints it.
[[nodiscard]] std::string comms_table(const CommsSummary& summary);
/// comms.json: {"world_size", "left_out", "rows": [...]}, fields as in CommsRow.
[[nodiscard]] std::string comms_json(const CommsSummary& summary);
/// "comm op: all_reduce | time (ms): 0.12 | msg size: 4.00 MB | ...".
[[nodiscard]] std::string comms_line(const CommsLog::Verbose& operation, const Model& model);

}  // namespace tandem
