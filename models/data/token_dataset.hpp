// models/data/token_dataset.hpp — token records as micro-batches, padded per micro-batch: a record
// in each row, or a pack of them (models/data/packing.hpp).
//
// Padding lies to the right of a causal model's tokens, so no token attends to it, and labels leave
// it out. So a micro-batch is only as long as its longest record, and its loss is the same as with
// rows padded to the longest record of all.
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

/// Returns the token that pads rows: the tokenizer's pad token, else its end token. Throws
/// user_error if the tokenizer has neither.
std::int32_t padding_id(const Tokenizer& tokenizer);

class TokenDataset : public Dataset {
 public:
  TokenDataset(std::shared_ptr<const TokenRecords> records, std::int32_t pad_id,
               const PackingOptions& packing = {});

  /// Returns the number of rows: records, or packs of them.
  [[nodiscard]] std::int64_t size() const override {
    return packs_ ? packs_->size() : records_->size();
  }
  [[nodiscard]] std::int64_t longest() const override {
    return packs_ ? packs_->longest() : records_->longest();
  }
  [[nodiscard]] bool packed() const override { return packs_.has_value(); }
  [[nodiscard]] std::string fingerprint() const override;
  /// Returns the packs; nullopt without packing.
  [[nodiscard]] const std::optional<Packs>& packs() const { return packs_; }
  /// inputs [B, T], T the longest of the B rows, padded on the right; labels are the inputs where a
  /// token is learnt and kIgnoredLabel elsewhere. A batch of packs also has positions: each piece
  /// is a document, whose first token is not learnt, and the padding is one, too.
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
