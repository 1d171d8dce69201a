// engine/data/loader.hpp — the sequence of micro-batches of a run: micro-batch number -> records ->
// HostBatch.
//
// A micro-batch is a pure function of (options, number), so any worker can make it, and the order
// does not depend on the number of workers. Each epoch is reshuffled with seed + epoch and is a
// whole number of steps, so that its micro-batches are the same for every number of ranks. To fill
// the last step, the epoch's first micro-batches are repeated, and one micro-batch may be short;
// with drop_last, records that do not fill another step are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/data/dataset.hpp"
#include "engine/data/sampler.hpp"

namespace tandem {

struct LoaderOptions {
  SamplerOptions sampler;         // records comes from the dataset, block is the micro-batch
  std::int64_t micro_batch = 1;   // records per micro-batch of this rank
  std::int64_t accumulation = 1;  // micro-batches of this rank that make a step
  std::int64_t epochs = 1;        // the sequence ends after these; 0: never
  bool drop_last = false;
  bool counts_labels = false;  // also sets each micro-batch's share of its step's labels
};

/// The loader's read-ahead and threads. The batches and their order do not depend on them.
struct PrefetchOptions {
  std::size_t depth = 2;  // micro-batches being made or ready, at least 1
  int workers = 1;        // threads that make them, at least 1
};

/// Returns a rank's number of micro-batches in an epoch of `records`; 0 if drop_last leaves none.
std::int64_t batches_per_epoch(std::int64_t records, const LoaderOptions& options);

class Loader {
 public:
  /// The dataset must not be empty.
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options);

  [[nodiscard]] std::int64_t batches_per_epoch() const noexcept { return batches_per_epoch_; }
  /// Micro-batches of the whole sequence; nullopt when it never ends.
  [[nodiscard]] std::optional<std::int64_t> batches() const noexcept;
  /// Micro-batch `number` (0-based), nullopt past the end. Any thread.
  [[nodiscard]] std::optional<HostBatch> make(std::int64_t number) const;

 private:
  [[nodiscard]] std::shared_ptr<const std::vector<std::int64_t>> order_of(std::int64_t epoch) const;
  /// Returns the number of labels in all ranks' micro-batches of that round's step.
  [[nodiscard]] std::int64_t labels_of_step(std::span<const std::int64_t> order,
                                            std::int64_t round) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::int64_t batches_per_epoch_ = 0;

  // The order of the epoch in use; workers may straddle two epochs, so each takes its own
  // reference.
  mutable std::mutex mutex_;
  mutable std::int64_t cached_epoch_ = -1;
  mutable std::shared_ptr<const std::vector<std::int64_t>> cached_order_;
};

}  // namespace tandem
