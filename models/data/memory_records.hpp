// models/data/memory_records.hpp — token records in memory, one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/data/token_records.hpp"

namespace tandem {

class MemoryRecords : public TokenRecords {
 public:
  /// Appends a record of at least one id; `learnt` has one entry for each id.
  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> learnt,
           bool was_cut = false);

  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::int64_t length(std::int64_t i) const override;
  [[nodiscard]] std::int64_t longest() const override { return longest_; }
  [[nodiscard]] std::int64_t cut_records() const override { return cut_records_; }
  [[nodiscard]] bool was_cut(std::int64_t i) const { return cut_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::string fingerprint() const override;
  void read(std::int64_t i, std::vector<std::int32_t>& ids,
            std::vector<std::uint8_t>& learnt) const override;

 private:
  std::vector<std::size_t> begins_ = {0};  // of each record, and the end of the last one
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> learnt_;
  std::vector<bool> cut_;  // of each record
  std::int64_t longest_ = 0;
  std::int64_t cut_records_ = 0;
};

}  // namespace tandem
