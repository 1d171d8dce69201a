#include "engine/data/dataset.hpp"

namespace tandem {

std::int64_t counted_labels(const HostBatch& batch) {
  if (!batch.targets.empty()) {
    return batch.rows;
  }
  const bool is_text = batch.feature_shape.empty();
  std::int64_t count = 0;
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    const bool is_first = is_text && i % static_cast<std::size_t>(batch.length) == 0;
    count += batch.labels[i] != kIgnoredLabel && !is_first ? 1 : 0;
  }
  return count;
}

}  // namespace tandem
