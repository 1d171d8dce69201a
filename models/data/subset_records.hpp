// models/data/subset_records.hpp — a subset of records, and the division of records into training
// and held-out ones.
//
// A record's own tokens decide whether it is held out, so a record stays in its part when others
// are added, removed or reordered, and its copies are in the same part.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/data/token_records.hpp"

namespace tandem {

class SubsetRecords : public TokenRecords {
 public:
  /// `indices` of `records`, in this order; at least one.
  SubsetRecords(std::shared_ptr<const TokenRecords> records, std::vector<std::int64_t> indices);

  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(indices_.size());
  }
  [[nodiscard]] std::int64_t length(std::int64_t i) const override {
    return records_->length(index(i));
  }
  [[nodiscard]] std::int64_t longest() const override { return longest_; }
  /// Returns the number of cut records in all of `records`.
  [[nodiscard]] std::int64_t cut_records() const override { return records_->cut_records(); }
  [[nodiscard]] std::string fingerprint() const override;
  void read(std::int64_t i, std::vector<std::int32_t>& ids,
            std::vector<std::uint8_t>& learnt) const override {
    records_->read(index(i), ids, learnt);
  }

 private:
  [[nodiscard]] std::int64_t index(std::int64_t i) const {
    return indices_[static_cast<std::size_t>(i)];
  }

  std::shared_ptr<const TokenRecords> records_;
  std::vector<std::int64_t> indices_;
  std::int64_t longest_ = 0;
};

/// Returns the records to learn, and the held-out ones, about `held_out_share` of all. Throws
/// user_error if one of the two parts would be empty.
std::pair<std::shared_ptr<const TokenRecords>, std::shared_ptr<const TokenRecords>> split_records(
    const std::shared_ptr<const TokenRecords>& records, double held_out_share);

}  // namespace tandem
