#include "models/data/token_dataset.hpp"

#include <algorithm>
#include <numeric>
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

TokenDataset::TokenDataset(std::shared_ptr<const TokenRecords> records, std::int32_t pad_id,
                           const PackingOptions& packing)
    : records_(std::move(records)), pad_id_(pad_id) {
  if (packing.kind != Packing::kOff) {
    packs_.emplace(*records_, packing);
  }
}

std::string TokenDataset::fingerprint() const {
  const std::string records = records_->fingerprint();
  return packs_ ? records + packs_->fingerprint() : records;
}

template <class Visit>
void TokenDataset::visit_pieces(std::int64_t row, Visit visit) const {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learnt;
  const auto visit_piece = [&](const PackPiece& piece) {
    records_->read(piece.record, ids, learnt);
    const auto begin = static_cast<std::size_t>(piece.begin);
    const auto count = static_cast<std::size_t>(piece.end - piece.begin);
    visit(std::span(ids).subspan(begin, count), std::span(learnt).subspan(begin, count));
  };
  if (!packs_) {
    visit_piece({row, 0, records_->length(row)});
    return;
  }
  for (const PackPiece& piece : packs_->pieces(row)) {
    visit_piece(piece);
  }
}

HostBatch TokenDataset::collate(std::span<const std::int64_t> indices) const {
  HostBatch batch{.rows = static_cast<std::int64_t>(indices.size())};
  for (const std::int64_t index : indices) {
    const std::int64_t length = packs_ ? packs_->length(index) : records_->length(index);
    batch.length = std::max(batch.length, length);
    batch.tokens += length;
    batch.lengths.push_back(length);
  }
  const auto cells = static_cast<std::size_t>(batch.rows * batch.length);
  batch.inputs.assign(cells, pad_id_);
  batch.labels.assign(cells, kIgnoredLabel);
  batch.positions.resize(packs_ ? cells : 0);
  const auto begin_document = [&](std::size_t begin, std::size_t end) {
    if (packs_) {
      const auto positions = std::span(batch.positions).subspan(begin, end - begin);
      std::iota(positions.begin(), positions.end(), 0);
    }
  };
  std::size_t row_begin = 0;
  for (const std::int64_t index : indices) {
    const std::size_t row_end = row_begin + static_cast<std::size_t>(batch.length);
    std::size_t at = row_begin;
    visit_pieces(index,
                 [&](std::span<const std::int32_t> ids, std::span<const std::uint8_t> learnt) {
                   for (std::size_t t = 0; t < ids.size(); ++t) {
                     batch.inputs[at + t] = ids[t];
                     if (learnt[t] != 0 && (t > 0 || !packs_)) {
                       batch.labels[at + t] = ids[t];
                     }
                   }
                   begin_document(at, at + ids.size());
                   at += ids.size();
                 });
    begin_document(at, row_end);  // of padding
    row_begin = row_end;
  }
  return batch;
}

std::int64_t TokenDataset::labels(std::span<const std::int64_t> indices) const {
  std::int64_t count = 0;
  for (const std::int64_t index : indices) {
    visit_pieces(index, [&](std::span<const std::int32_t>, std::span<const std::uint8_t> learnt) {
      count +=
          std::count_if(learnt.begin() + 1, learnt.end(), [](std::uint8_t l) { return l != 0; });
    });
  }
  return count;
}

}  // namespace tandem
