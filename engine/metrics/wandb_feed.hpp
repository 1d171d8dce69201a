// engine/metrics/wandb_feed.hpp — a run's scalars for Weights & Biases, through the user's own
// Python module `wandb`.
//
// A process of its own, `python3` of the PATH, reads them from a socket: whatever the module does,
// the trainer waits for it nowhere but in close(), and there for a bounded time. Records go to the
// process once a second, all that there are: a trainer that is killed leaves those of the last
// second out. It runs when no other wants the processor. Without WANDB_MODE and WANDB_API_KEY in
// the environment the module runs offline and sends nothing; the process then keeps the records and
// tells the module of them every ten minutes and at the end.
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
  /// Starts the process. Throws Error where that cannot be; a module that is missing shows later.
  WandbFeed(const WandbConfig& config, const WandbRun& run);
  ~WandbFeed();
  WandbFeed(const WandbFeed&) = delete;
  WandbFeed& operator=(const WandbFeed&) = delete;

  /// `at`: the x axis, which only grows. May send it later. Throws Error when the process has
  /// ended, or is so far behind that this record is left out.
  void write(std::int64_t at, const std::vector<Scalar>& scalars);

  /// Ends the process and waits for it, patience_s at most; then it is left to itself. Throws Error
  /// where not all was taken.
  void close();

 private:
  void send(std::string_view text);
  /// Sends what the socket takes now.
  void flush();
  /// How the process ended, for a message; empty: it has not, within `seconds`.
  std::string end_within(double seconds);

  double patience_s_;
  int socket_ = -1;
  pid_t process_ = -1;
  std::string unsent_;
  std::chrono::steady_clock::time_point next_send_;
};

}  // namespace tandem
