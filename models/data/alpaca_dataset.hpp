// models/data/alpaca_dataset.hpp — instruction records as micro-batches: tokenised once, padded per
// micro-batch.
//
// The DeepSpeed example pads every record to max_length. Padding is masked out of labels and no
// real token attends to it (it lies to the right of a causal model), so a micro-batch is cut to its
// longest record: the same loss for less work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/dataset.hpp"
#include "models/data/alpaca.hpp"
#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

struct AlpacaOptions {
  std::int64_t max_length = 2048;
  double percentage = 100;  // of the records, from the first on
};

class AlpacaDataset : public Dataset {
 public:
  /// Reads and tokenises the file. Throws user_error naming file and record.
  AlpacaDataset(const std::filesystem::path& file, const Tokenizer& tokenizer,
                const AlpacaOptions& options);

  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override;

  /// Of the token ids of all records.
  [[nodiscard]] std::string fingerprint() const override;

  /// Tokens of the longest record, cut at max_length.
  [[nodiscard]] std::int64_t longest() const override;
  [[nodiscard]] const AlpacaRecord& record(std::int64_t index) const {
    return records_[static_cast<std::size_t>(index)];
  }

 private:
  std::vector<AlpacaRecord> records_;
  std::vector<std::vector<std::int64_t>> tokens_;  // [record], without padding
  std::int64_t pad_id_ = 0;
};

}  // namespace tandem
