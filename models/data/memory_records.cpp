#include "models/data/memory_records.hpp"

#include <algorithm>

#include "actors/storage/content_hash.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

void MemoryRecords::add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> learnt,
                        bool was_cut) {
  TANDEM_CHECK(!ids.empty() && ids.size() == learnt.size(), "a mask has an entry for each token");
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  learnt_.insert(learnt_.end(), learnt.begin(), learnt.end());
  begins_.push_back(ids_.size());
  longest_ = std::max(longest_, static_cast<std::int64_t>(ids.size()));
  cut_.push_back(was_cut);
  cut_records_ += was_cut ? 1 : 0;
}

std::int64_t MemoryRecords::size() const { return static_cast<std::int64_t>(begins_.size()) - 1; }

std::int64_t MemoryRecords::length(std::int64_t i) const {
  const auto record = static_cast<std::size_t>(i);
  return static_cast<std::int64_t>(begins_[record + 1] - begins_[record]);
}

std::string MemoryRecords::fingerprint() const {
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(begins_)));
  hasher.add(std::as_bytes(std::span(ids_)));
  hasher.add(std::as_bytes(std::span(learnt_)));
  return hasher.result().text();
}

void MemoryRecords::read(std::int64_t i, std::vector<std::int32_t>& ids,
                         std::vector<std::uint8_t>& learnt) const {
  const auto begin = static_cast<std::ptrdiff_t>(begins_[static_cast<std::size_t>(i)]);
  const auto end = static_cast<std::ptrdiff_t>(begins_[static_cast<std::size_t>(i) + 1]);
  ids.assign(ids_.begin() + begin, ids_.begin() + end);
  learnt.assign(learnt_.begin() + begin, learnt_.begin() + end);
}

}  // namespace tandem
