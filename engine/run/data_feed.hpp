// engine/run/data_feed.hpp — a rank's micro-batches from a data set, prefetched by an actor's
// workers.
//
// Thread rule: the loop's thread. The actor runs in the rank's scope; the feed outlives that
// scope's tasks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/data_prefetch.hpp"
#include "engine/data/loader.hpp"
#include "engine/rank/rank.hpp"
#include "engine/tensors/segment.hpp"
#include "runtime/cpu_pool.hpp"

namespace tandem {

/// Copies a host batch into tensors. Compute lane.
[[nodiscard]] Batch to_tensors(const HostBatch& host);

class DataFeed {
 public:
  /// `rank` outlives this object. Throws user_error if `ahead` has no worker or a depth of 0.
  DataFeed(Rank& rank, std::shared_ptr<const Dataset> dataset, LoaderOptions options,
           const PrefetchOptions& ahead);

  [[nodiscard]] const Loader& loader() const noexcept { return loader_; }
  /// Identifies the data set's records.
  [[nodiscard]] const std::string& fingerprint() const noexcept { return fingerprint_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }
  /// Micro-batches that this rank has taken.
  [[nodiscard]] std::int64_t taken() const noexcept { return taken_; }
  /// Whether at least `more` micro-batches are left.
  [[nodiscard]] bool has(std::int64_t more) const;

  /// Returns the next micro-batch as tensors; nullopt after the last epoch.
  Task<std::optional<Batch>> next();
  /// Returns the seconds that next() has waited since the last take_wait_s().
  [[nodiscard]] double take_wait_s();

  /// Continues with this rank's micro-batch `number`, counted from 0.
  void go_on_at(std::int64_t number);
  /// Ends the prefetch: no further micro-batch is made.
  void close();

 private:
  void start(std::int64_t first);

  Rank& rank_;
  std::string fingerprint_;
  std::uint64_t seed_;
  Loader loader_;  // outlives the prefetch actor, whose workers call it
  CpuPool pool_;
  std::size_t depth_;
  // The last one makes batches; those before it were closed by go_on_at().
  std::vector<std::unique_ptr<DataPrefetch<HostBatch>>> prefetches_;
  std::int64_t taken_ = 0;
  double wait_s_ = 0;
};

}  // namespace tandem
