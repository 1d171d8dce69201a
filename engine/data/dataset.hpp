// engine/data/dataset.hpp — records that can be made into micro-batches on the host.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem {

/// The label of a token that is not learnt (PyTorch's ignore_index).
inline constexpr std::int64_t kIgnoredLabel = -100;

/// One micro-batch in host memory, before the compute lane makes tensors of it; row-major. Two
/// kinds:
///  - tokens: `inputs` and `labels` are [rows, length];
///  - features (images): `features` has `feature_shape`, whose first extent is rows, length is 1;
///    `labels` are classes, or `targets` numbers, of `label_shape`.
struct HostBatch {
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::int64_t tokens = 0;           // without padding; of features: rows
  std::vector<std::int64_t> inputs;  // token ids
  std::vector<std::int64_t> labels;  // kIgnoredLabel: nothing to learn there
  std::int64_t epoch = 0;
  std::vector<float> features;
  std::vector<std::int64_t> feature_shape;          // empty: a batch of tokens
  std::optional<double> loss_share = std::nullopt;  // as in Batch; of a loader that counts labels
  std::vector<std::int64_t> positions = {};         // [rows, length], as in Batch; empty: none
  std::vector<std::int64_t> lengths = {};           // [rows], as in Batch; empty: not known
  std::vector<float> targets = {};                  // beside features, instead of labels
  std::vector<std::int64_t> label_shape = {};       // of either, first extent rows; empty: [rows]
};

/// Returns the number of labels over which the batch's loss is the mean. A row's first label does
/// not count, because no token before it predicts it; the first label of a later document is
/// kIgnoredLabel (Batch::positions). For a batch with targets: the number of rows.
[[nodiscard]] std::int64_t counted_labels(const HostBatch& batch);

class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Returns the tokens of the longest record, for the memory plan; 1 if records are not texts or
  /// the length is not known.
  [[nodiscard]] virtual std::int64_t longest() const { return 1; }
  /// Whether a row holds several documents (HostBatch::positions), for the memory plan.
  [[nodiscard]] virtual bool packed() const { return false; }
  /// Identifies the data set: a resumed run must have the fingerprint of the checkpoint's run.
  /// Empty: not known.
  [[nodiscard]] virtual std::string fingerprint() const { return ""; }
  /// Returns the records `indices` as one micro-batch. Called from pool threads, several at once.
  [[nodiscard]] virtual HostBatch collate(std::span<const std::int64_t> indices) const = 0;
  /// Returns counted_labels() of that micro-batch. Called as collate() is.
  [[nodiscard]] virtual std::int64_t labels(std::span<const std::int64_t> indices) const {
    return counted_labels(collate(indices));
  }
};

}  // namespace tandem
