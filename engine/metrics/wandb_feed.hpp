// engine/metrics/wandb_feed.hpp — a run's scalars for Weights & Biases, through the user's own
// Python module `wandb`.
//
// A separate process, `python3` of the PATH, reads them from a socket. So the trainer waits for the
// module only in close(), for a bounded time. Records are sent to the process once a second; a
// trainer that is killed loses those of the last second. The process has the lowest priority.
// Without WANDB_MODE and WANDB_API_KEY in the environment the module runs offline and sends
// nothing; the process then collects records and passes them to the module every ten minutes and at
// the end.
// Thread rule: one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "engine/config/monitor_config.hpp"
#include "engine/metrics/event_writer.hpp"

namespace tandem {

struct WandbRun {
  std::string folder;   // of the run; wandb/ and wandb_id.txt are made there
  bool append = false;  // resumed: goes on under the id that is there
  std::string name;     // empty: the module makes one
  std::vector<std::string> tags;
  std::string config_json;  // an object, or empty
  double patience_s = 60;   // of close()
};

class WandbFeed {
 public:
  /// Starts the process. Throws Error if that fails; a missing module is reported by a later call.
  WandbFeed(const WandbConfig& config, const WandbRun& run);
  ~WandbFeed();
  WandbFeed(const WandbFeed&) = delete;
  WandbFeed& operator=(const WandbFeed&) = delete;

  /// Queues a record; it may be sent later. `at`: the x axis, which must not decrease. Throws Error
  /// if the process has ended, or is so far behind that this record is dropped.
  void write(std::int64_t at, const std::vector<Scalar>& scalars);

  /// Ends the process and waits for it, at most patience_s; after that the process is left running.
  /// Throws Error if it did not take all records.
  void close();

 private:
  void send(std::string_view text);
  /// Sends what the socket takes now.
  void flush();
  /// Returns how the process ended, for a message; empty if it has not ended within `seconds`.
  std::string end_within(double seconds);

  double patience_s_;
  int socket_ = -1;
  pid_t process_ = -1;
  std::string unsent_;
  std::chrono::steady_clock::time_point next_send_;
};

}  // namespace tandem
