// trainer/metrics/run_status.hpp — --status_socket: serves a run's state while it trains.
//
//   /metrics  the last step's figures, as Prometheus scrapes them
//   /step     the same as JSON, with how far the run is
//   /actors   the tasks on the rank's loop, what each one waits for and since when
//
// The loop's thread makes the answers, within steps. Without the flag there is no server.
#pragma once

#include <memory>
#include <string>

#include "engine/metrics/step_metrics.hpp"
#include "trainer/metrics/console.hpp"

namespace tandem {

class EventLoop;
class MetricsWriter;
class StatusServer;

/// Prometheus' text format, version 0.0.4.
[[nodiscard]] std::string prometheus_text(const StepMetrics& metrics, const RunProgress& progress);
[[nodiscard]] std::string step_json(const StepMetrics& metrics, const RunProgress& progress);

/// Serves at `address` on the first rank, unless it is empty; "auto" is status.sock in the run's
/// folder. A line of the run names the address. The metrics writer outlives it.
[[nodiscard]] std::unique_ptr<StatusServer> serve_status(EventLoop& loop, std::string address,
                                                         MetricsWriter& metrics, int rank);

}  // namespace tandem
