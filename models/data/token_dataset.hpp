// models/data/token_dataset.hpp — token records as micro-batches, padded per micro-batch: a record
// in each row, or a pack of them (models/data/packing.hpp).
//
// Padding lies to the right of a causal model's tokens, so none of them attends to it, and it is
// masked out of the labels: a micro-batch is only as long as its longest record, with the same loss
// as rows padded to the longest of all.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/data/dataset.hpp"
#include "models/data/packing.hpp"
#include "models/data/token_records.hpp"
#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

/// The token that fills rows up: the tokenizer's pad token, else its end token. Error if it has
/// neither.
std::int32_t padding_id(const Tokenizer& tokenizer);

class TokenDataset : public Dataset {
 public:
  TokenDataset(std::shared_ptr<const TokenRecords> records, std::int32_t pad_id,
               const PackingOptions& packing = {});

  /// Rows: records, or packs of them.
  [[nodiscard]] std::int64_t size() const override {
    return packs_ ? packs_->size() : records_->size();
  }
  [[nodiscard]] std::int64_t longest() const override {
    return packs_ ? packs_->longest() : records_->longest();
  }
  [[nodiscard]] bool packed() const override { return packs_.has_value(); }
  [[nodiscard]] std::string fingerprint() const override;
  /// Nothing without packing.
  [[nodiscard]] const std::optional<Packs>& packs() const { return packs_; }
  /// inputs [B, T], T the longest of the B rows, padded on the right; labels are the inputs where a
  /// token is learnt and kIgnoredLabel elsewhere. Packs also have positions: each piece is a
  /// document, whose first token is not learnt, and so is the padding.
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override;
  [[nodiscard]] std::int64_t labels(std::span<const std::int64_t> indices) const override;

 private:
  /// Calls visit(ids, learnt) with each piece of a row.
  template <class Visit>
  void visit_pieces(std::int64_t row, Visit visit) const;

  std::shared_ptr<const TokenRecords> records_;
  std::int64_t pad_id_;
  std::optional<Packs> packs_;
};

}  // namespace tandem
