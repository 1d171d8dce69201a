#include "models/data/alpaca_dataset.hpp"

#include <algorithm>

#include "actors/storage/content_hash.hpp"

namespace tandem {

AlpacaDataset::AlpacaDataset(const std::filesystem::path& file, const Tokenizer& tokenizer,
                             const AlpacaOptions& options)
    : records_(read_alpaca(file, options.percentage)), pad_id_(padding_id(tokenizer)) {
  tokens_.reserve(records_.size());
  for (const AlpacaRecord& record : records_) {
    const auto ids = cut_ids(tokenizer, alpaca_text(record), options.max_length);
    tokens_.emplace_back(ids.begin(), ids.end());
  }
}

std::int64_t AlpacaDataset::size() const { return static_cast<std::int64_t>(tokens_.size()); }

std::int64_t AlpacaDataset::longest() const {
  std::size_t most = 0;
  for (const auto& tokens : tokens_) {
    most = std::max(most, tokens.size());
  }
  return static_cast<std::int64_t>(most);
}

std::string AlpacaDataset::fingerprint() const {
  ContentHasher hasher;
  for (const auto& tokens : tokens_) {
    const std::size_t count = tokens.size();
    hasher.add(std::as_bytes(std::span(&count, 1)));
    hasher.add(std::as_bytes(std::span(tokens)));
  }
  return hasher.result().text();
}

HostBatch AlpacaDataset::collate(std::span<const std::int64_t> indices) const {
  HostBatch batch{.rows = static_cast<std::int64_t>(indices.size())};
  for (const std::int64_t index : indices) {
    const auto length = static_cast<std::int64_t>(tokens_[static_cast<std::size_t>(index)].size());
    batch.length = std::max(batch.length, length);
    batch.tokens += length;
  }
  const auto cells = static_cast<std::size_t>(batch.rows * batch.length);
  batch.inputs.assign(cells, pad_id_);
  batch.labels.assign(cells, kIgnoredLabel);
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const auto& tokens = tokens_[static_cast<std::size_t>(indices[row])];
    const auto begin = static_cast<std::ptrdiff_t>(row) * batch.length;
    std::ranges::copy(tokens, batch.inputs.begin() + begin);
    std::ranges::copy(tokens, batch.labels.begin() + begin);
  }
  return batch;
}

}  // namespace tandem
