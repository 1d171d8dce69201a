// models/data/token_dataset.hpp — token records as micro-batches, padded per micro-batch.
//
// Padding lies to the right of a causal model's tokens, so none of them attends to it, and it is
// masked out of the labels: a micro-batch is only as long as its longest record, with the same loss
// as rows padded to the longest of all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/data/dataset.hpp"
#include "models/data/token_records.hpp"
#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

/// The token that fills rows up: the tokenizer's pad token, else its end token. Error if it has
/// neither.
std::int32_t padding_id(const Tokenizer& tokenizer);

class TokenDataset : public Dataset {
 public:
  TokenDataset(std::shared_ptr<const TokenRecords> records, std::int32_t pad_id);

  [[nodiscard]] std::int64_t size() const override { return records_->size(); }
  [[nodiscard]] std::int64_t longest() const override { return records_->longest(); }
  [[nodiscard]] std::string fingerprint() const override { return records_->fingerprint(); }
  /// inputs [B, T], T the longest of the B records, padded on the right; labels are the inputs
  /// where a token is learnt and kIgnoredLabel elsewhere.
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override;
  [[nodiscard]] std::int64_t labels(std::span<const std::int64_t> indices) const override;

 private:
  std::shared_ptr<const TokenRecords> records_;
  std::int64_t pad_id_;
};

}  // namespace tandem
