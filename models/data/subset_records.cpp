#include "models/data/subset_records.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "actors/storage/content_hash.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

SubsetRecords::SubsetRecords(std::shared_ptr<const TokenRecords> records,
                             std::vector<std::int64_t> indices)
    : records_(std::move(records)), indices_(std::move(indices)) {
  TANDEM_CHECK(!indices_.empty(), "a subset has a record");
  for (const std::int64_t i : indices_) {
    longest_ = std::max(longest_, records_->length(i));
  }
}

std::string SubsetRecords::fingerprint() const {
  ContentHasher hasher;
  const std::string of_all = records_->fingerprint();
  hasher.add(std::as_bytes(std::span(of_all)));
  hasher.add(std::as_bytes(std::span(indices_)));
  return hasher.result().text();
}

std::pair<std::shared_ptr<const TokenRecords>, std::shared_ptr<const TokenRecords>> split_records(
    const std::shared_ptr<const TokenRecords>& records, double held_out_share) {
  const double below = std::ldexp(held_out_share, 64);  // of the hash's lower half
  std::vector<std::int64_t> learnt;
  std::vector<std::int64_t> held_out;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
  ContentHasher hasher;
  for (std::int64_t i = 0; i < records->size(); ++i) {
    records->read(i, ids, mask);
    hasher.reset();
    hasher.add(std::as_bytes(std::span(ids)));
    const bool is_held_out = static_cast<double>(hasher.result().low) < below;
    (is_held_out ? held_out : learnt).push_back(i);
  }
  if (learnt.empty() || held_out.empty()) {
    throw user_error("dataset",
                     "a share of {} of {} records holds out {}; give another share, or records of "
                     "their own to evaluate on",
                     held_out_share, records->size(), held_out.size());
  }
  return {std::make_shared<SubsetRecords>(records, std::move(learnt)),
          std::make_shared<SubsetRecords>(records, std::move(held_out))};
}

}  // namespace tandem
