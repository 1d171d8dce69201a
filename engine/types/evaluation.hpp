// engine/types/evaluation.hpp — the loss over a data set as sums, from which any number of ranks
// gets the same mean.
#pragma once

#include <cmath>
#include <cstdint>

namespace tandem {

struct EvaluateArgs {
  std::int64_t micro_batch = 1;  // records at a time
  std::int64_t batches = 0;      // of the data set, the first ones; 0: all
};

struct EvalSums {
  double loss = 0;           // summed over `labels`; with experts it includes the routers' loss
  double label_loss = 0;     // the same without it
  std::int64_t labels = 0;   // tokens (of features: records) whose prediction counts
  std::int64_t records = 0;  // that were run
  double seconds = 0;        // of this rank's clock

  /// Returns the mean loss; NaN if no label counts.
  [[nodiscard]] double mean() const noexcept { return loss / static_cast<double>(labels); }
  [[nodiscard]] double perplexity() const noexcept { return std::exp(mean()); }
  /// Returns the mean loss of the labels alone, without the routers' own loss.
  [[nodiscard]] double label_mean() const noexcept {
    return label_loss / static_cast<double>(labels);
  }
  [[nodiscard]] double label_perplexity() const noexcept { return std::exp(label_mean()); }
};

}  // namespace tandem
