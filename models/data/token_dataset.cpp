#include "models/data/token_dataset.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/util/error.hpp"

namespace tandem {

std::int32_t padding_id(const Tokenizer& tokenizer) {
  const auto id = tokenizer.pad_id() ? tokenizer.pad_id() : tokenizer.eos_id();
  if (!id) {
    throw user_error(
        "tokenizer",
        "tokenizer_config.json names neither pad_token nor eos_token; add one of them");
  }
  return *id;
}

TokenDataset::TokenDataset(std::shared_ptr<const TokenRecords> records, std::int32_t pad_id)
    : records_(std::move(records)), pad_id_(pad_id) {}

HostBatch TokenDataset::collate(std::span<const std::int64_t> indices) const {
  HostBatch batch{.rows = static_cast<std::int64_t>(indices.size())};
  for (const std::int64_t index : indices) {
    const std::int64_t length = records_->length(index);
    batch.length = std::max(batch.length, length);
    batch.tokens += length;
  }
  const auto cells = static_cast<std::size_t>(batch.rows * batch.length);
  batch.inputs.assign(cells, pad_id_);
  batch.labels.assign(cells, kIgnoredLabel);
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  std::size_t row_begin = 0;
  for (const std::int64_t index : indices) {
    records_->read(index, ids, learnt);
    for (std::size_t t = 0; t < ids.size(); ++t) {
      batch.inputs[row_begin + t] = ids[t];
      if (learnt[t] != 0) {
        batch.labels[row_begin + t] = ids[t];
      }
    }
    row_begin += static_cast<std::size_t>(batch.length);
  }
  return batch;
}

std::int64_t TokenDataset::labels(std::span<const std::int64_t> indices) const {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  std::int64_t count = 0;
  for (const std::int64_t index : indices) {
    records_->read(index, ids, learnt);
    count += std::count_if(learnt.begin() + 1, learnt.end(), [](std::uint8_t l) { return l != 0; });
  }
  return count;
}

}  // namespace tandem
