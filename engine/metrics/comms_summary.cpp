#include "engine/metrics/comms_summary.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "runtime/util/check.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

using flight::Kind;

constexpr double kMsPerS = 1000;

struct Operation {
  Kind what;
  std::string_view name;                      // DeepSpeed's
  std::array<std::string_view, 2> also = {};  // other names that prof_ops may have for it
  bool message_is_shard = false;              // what a rank hands in is its part of the block
};
constexpr std::array kOperations = {
    Operation{Kind::kAllGather, "all_gather_into_tensor", {"all_gather", "allgather_fn"}, true},
    Operation{Kind::kAllToAll, "all_to_all_single", {"all_to_all"}},
    Operation{
        Kind::kReduceScatter, "reduce_scatter_tensor", {"reduce_scatter", "reduce_scatter_fn"}},
    Operation{Kind::kAllReduce, "all_reduce"},
    Operation{Kind::kNorm, "all_reduce"},
    Operation{Kind::kExchange, "all_gather", {"barrier"}, true},
};

const Operation& operation_of(Kind what) {
  const auto* found = std::ranges::find(kOperations, what, &Operation::what);
  TANDEM_CHECK(found != kOperations.end(), "a collective has a name");
  return *found;
}

std::int64_t message_bytes(const CommsKey& key) {
  return static_cast<std::int64_t>(key.bytes /
                                   (operation_of(key.what).message_is_shard ? key.ranks : 1));
}

std::string name_of(const CommsKey& key, const Model& model) {
  std::string name(key.what == Kind::kExchange && key.bytes == 0 ? "barrier"
                                                                 : operation_of(key.what).name);
  if (key.unit < model.units.size()) {
    name += fmt::format(" | [Caller Func: {}]", model.units[key.unit].name);
  }
  return name;
}

/// Gbit/s of one operation that takes `seconds`: algorithm's and bus'.
struct Rates {
  double algorithm_gbps = 0;
  double bus_gbps = 0;
};
Rates rates_of(const CommsKey& key, double seconds) {
  constexpr double kGigabit = 1e9 / 8;
  if (!(seconds > 0)) {
    return {};
  }
  const double once = static_cast<double>(key.bytes) / seconds / kGigabit;
  const auto ranks = static_cast<double>(key.ranks);
  switch (key.what) {
    case Kind::kAllReduce:
    case Kind::kNorm:
      return {2 * once, once * 2 * (ranks - 1) / ranks};
    default:
      return {once, once * (ranks - 1) / ranks};
  }
}

/// As DeepSpeed writes sizes.
std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) {
    value /= 1024;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace

CommsLog::Options comms_log_options(const CommsLoggerConfig& config) {
  CommsLog::Options options{.by_unit = config.debug, .verbose = config.verbose};
  if (config.prof_all) {
    return options;
  }
  options.operations = 0;
  for (const Operation& operation : kOperations) {
    const bool wanted = std::ranges::any_of(config.prof_ops, [&](const std::string& name) {
      return name == operation.name ||
             std::ranges::find(operation.also, name) != operation.also.end();
    });
    options.operations |= wanted ? 1U << static_cast<std::uint32_t>(operation.what) : 0;
  }
  return options;
}

CommsSummary summarise_comms(std::span<const CommsLog* const> logs, const Model& model,
                             std::int64_t world_size) {
  CommsSummary summary{.world_size = world_size};
  for (const CommsLog* log : logs) {
    if (log == nullptr) {
      continue;
    }
    summary.enabled = true;
    summary.left_out += log->left_out();
    for (const auto& [key, count] : log->rows()) {
      const auto operations = static_cast<double>(count.operations);
      const Rates rates = rates_of(key, count.total_s / operations);
      summary.rows.push_back({.operation = name_of(key, model),
                              .ranks = key.ranks,
                              .message_bytes = message_bytes(key),
                              .block_bytes = static_cast<std::int64_t>(key.bytes),
                              .count = static_cast<std::int64_t>(count.operations),
                              .total_s = count.total_s,
                              .exposed_s = count.exposed_s,
                              .algorithm_gbps = rates.algorithm_gbps,
                              .bus_gbps = rates.bus_gbps,
                              .compared = static_cast<std::int64_t>(count.latest_s.size())});
    }
  }
  return summary;
}

std::vector<float> latest_times(std::span<const CommsLog* const> logs) {
  std::vector<float> times;
  for (const CommsLog* log : logs) {
    if (log != nullptr) {
      for (const auto& [key, count] : log->rows()) {
        times.insert(times.end(), count.latest_s.begin(), count.latest_s.end());
      }
    }
  }
  return times;
}

void compare_stragglers(CommsSummary& summary, std::span<const float> mine,
                        std::span<const float> all) {
  TANDEM_CHECK(!mine.empty() ? all.size() % mine.size() == 0 : all.empty(),
               "each rank has as many times");
  std::size_t at = 0;
  for (CommsRow& row : summary.rows) {
    for (std::int64_t i = 0; i < row.compared; ++i, ++at) {
      float least_s = mine[at];
      for (std::size_t other = at; other < all.size(); other += mine.size()) {
        least_s = std::min(least_s, all[other]);
      }
      row.least_s += least_s;
      row.straggler_s += mine[at] - least_s;
    }
  }
  summary.compares_stragglers = true;
}

std::string comms_table(const CommsSummary& summary) {
  if (!summary.enabled) {
    return "comms_logger is off; set comms_logger.enabled in the config\n";
  }
  std::string text = fmt::format("{:<20}{:<20}{:<20}{:<20}{:<20}{:<20}{:<20}{:<20}\n", "Comm. Op",
                                 "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)",
                                 "tput_avg (Gbps)", "busbw_avg (Gbps)", "Exposed(ms)");
  std::string_view operation;
  for (const CommsRow& row : summary.rows) {
    text += row.operation != operation ? row.operation + "\n" : "";
    operation = row.operation;
    text += fmt::format("{:<20}{:<20}{:<20}{:<20.2f}{:<20.2f}{:<20.2f}{:<20.2f}{:<20.2f}\n", "",
                        bytes_text(row.message_bytes), row.count, row.total_s * kMsPerS,
                        row.total_s * kMsPerS / static_cast<double>(row.count), row.algorithm_gbps,
                        row.bus_gbps, row.exposed_s * kMsPerS);
  }
  if (summary.rows.empty()) {
    text += summary.world_size == 1 ? "one rank: nothing travels\n" : "no operation was counted\n";
  }
  if (summary.left_out > 0) {
    text += fmt::format("and {} operations of further sizes\n", summary.left_out);
  }
  if (!summary.compares_stragglers) {
    return text;
  }
  text += "_______________________________\nBreakdown with straggler effect\n";
  text += "-------------------------------\n";
  text += fmt::format("{:<20}{:<20}{:<20}{:<20}{:<20}{:<20}{:<20}\n", "Comm. Op", "Message Size",
                      "Count", "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)",
                      "Avg straggler(ms)");
  operation = {};
  for (const CommsRow& row : summary.rows) {
    text += row.operation != operation ? row.operation + "\n" : "";
    operation = row.operation;
    const auto compared = static_cast<double>(row.compared);
    text += fmt::format("{:<20}{:<20}{:<20}{:<20.2f}{:<20.2f}{:<20.2f}{:<20.2f}\n", "",
                        bytes_text(row.message_bytes), row.compared, row.least_s * kMsPerS,
                        row.straggler_s * kMsPerS, row.least_s * kMsPerS / compared,
                        row.straggler_s * kMsPerS / compared);
  }
  return text;
}

std::string comms_json(const CommsSummary& summary) {
  JsonWriter json(2);
  json.begin_object();
  json.field("world_size", summary.world_size).field("left_out", summary.left_out);
  json.key("rows").begin_array();
  for (const CommsRow& row : summary.rows) {
    json.begin_object();
    json.field("operation", row.operation).field("ranks", row.ranks);
    json.field("message_bytes", row.message_bytes).field("block_bytes", row.block_bytes);
    json.field("count", row.count).field("total_s", row.total_s);
    json.field("exposed_s", row.exposed_s).field("algorithm_gbps", row.algorithm_gbps);
    json.field("bus_gbps", row.bus_gbps);
    if (summary.compares_stragglers) {
      json.field("compared", row.compared).field("least_s", row.least_s);
      json.field("straggler_s", row.straggler_s);
    }
    json.end_object();
  }
  json.end_array().end_object();
  return json.take() + "\n";
}

std::string comms_line(const CommsLog::Verbose& operation, const Model& model) {
  const Rates rates = rates_of(operation.key, operation.seconds);
  return fmt::format(
      "comm op: {} | time (ms): {:.2f} | msg size: {} | algbw (Gbps): {:.2f} | busbw (Gbps): "
      "{:.2f}",
      name_of(operation.key, model), operation.seconds * kMsPerS,
      bytes_text(message_bytes(operation.key)), rates.algorithm_gbps, rates.bus_gbps);
}

}  // namespace tandem
