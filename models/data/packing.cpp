#include "models/data/packing.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/content_hash.hpp"
#include "engine/data/sampler.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

// Enough for rows to be full (Alpaca's of 512 tokens: above 99 %), and few beside large data, whose
// packs would otherwise be in the order of their longest records.
constexpr std::int64_t kWindow = 4096;

}  // namespace

std::vector<std::vector<std::int32_t>> best_fit_decreasing(const std::vector<std::int64_t>& lengths,
                                                           std::int64_t room) {
  std::vector<std::int32_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  const auto length = [&](std::int32_t i) { return lengths[static_cast<std::size_t>(i)]; };
  std::ranges::stable_sort(longest_first, std::ranges::greater(), length);
  std::vector<std::vector<std::int32_t>> packs;
  std::set<std::pair<std::int64_t, std::size_t>> left;  // of a pack's room, and the pack
  for (const std::int32_t item : longest_first) {
    TANDEM_CHECK(length(item) >= 1 && length(item) <= room, "an item fits into an empty pack");
    const auto best = left.lower_bound({length(item), 0});
    std::pair<std::int64_t, std::size_t> pack = {room, packs.size()};
    if (best == left.end()) {
      packs.emplace_back();
    } else {
      pack = *best;
      left.erase(best);
    }
    packs[pack.second].push_back(item);
    left.emplace(pack.first - length(item), pack.second);
  }
  return packs;
}

Packs::Packs(const TokenRecords& records, const PackingOptions& options)
    : records_(&records), options_(options) {
  TANDEM_CHECK(options.kind != Packing::kOff && options.room >= 1, "records are packed");
  const std::vector<std::int64_t> shuffled = torch_permutation(records.size(), options.seed);
  order_.assign(shuffled.begin(), shuffled.end());
  begins_.emplace_back();
  if (options.kind == Packing::kWrapped) {
    wrap();
  } else {
    for (std::int64_t window = 0; window < records.size(); window += kWindow) {
      fit(window);
    }
  }
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t tokens = length(i);
    longest_ = std::max(longest_, tokens);
    tokens_ += tokens;
  }
}

/// Puts the window's records into the order of its packs.
void Packs::fit(std::int64_t window) {
  const std::int64_t count = std::min(kWindow, records_->size() - window);
  const std::span<std::int32_t> part =
      std::span(order_).subspan(static_cast<std::size_t>(window), static_cast<std::size_t>(count));
  const std::vector<std::int32_t> before(part.begin(), part.end());
  std::vector<std::int64_t> lengths(before.size());
  std::ranges::transform(before, lengths.begin(),
                         [&](std::int32_t record) { return kept(record); });
  std::size_t at = 0;
  for (const std::vector<std::int32_t>& pack : best_fit_decreasing(lengths, options_.room)) {
    for (const std::int32_t item : pack) {
      part[at++] = before[static_cast<std::size_t>(item)];
    }
    begins_.push_back({window + static_cast<std::int64_t>(at), 0});
  }
}

void Packs::wrap() {
  std::int64_t left = options_.room;  // of the last row
  for (std::int64_t at = 0; at < records_->size(); ++at) {
    const std::int64_t length = kept(order_[static_cast<std::size_t>(at)]);
    std::int64_t offset = 0;
    for (; length - offset > left; left = options_.room) {
      offset += left;
      begins_.push_back({at, offset});
    }
    divided_ += offset > 0 ? 1 : 0;
    left -= length - offset;
  }
  begins_.push_back({records_->size(), 0});
}

std::int64_t Packs::kept(std::int64_t record) const {
  const std::int64_t length = records_->length(record);
  return options_.kind == Packing::kWrapped ? length : std::min(length, options_.room);
}

std::vector<PackPiece> Packs::pieces(std::int64_t i) const {
  const Place begin = begins_[static_cast<std::size_t>(i)];
  const Place end = begins_[static_cast<std::size_t>(i) + 1];
  std::vector<PackPiece> pieces;
  for (std::int64_t at = begin.at; at < end.at || (at == end.at && end.offset > 0); ++at) {
    const std::int64_t record = order_[static_cast<std::size_t>(at)];
    pieces.push_back(
        {record, at == begin.at ? begin.offset : 0, at == end.at ? end.offset : kept(record)});
  }
  return pieces;
}

std::int64_t Packs::length(std::int64_t i) const {
  std::int64_t tokens = 0;
  for (const PackPiece& piece : pieces(i)) {
    tokens += piece.end - piece.begin;
  }
  return tokens;
}

std::string Packs::fingerprint() const {
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(order_)));
  hasher.add(std::as_bytes(std::span(begins_)));
  return hasher.result().text();
}

std::string Packs::text() const {
  const auto full = static_cast<double>(tokens_) / static_cast<double>(size() * options_.room);
  return fmt::format("{} pack{} of up to {} tokens ({}), {:.1f} % full{}", size(),
                     size() == 1 ? "" : "s", options_.room, name_of(options_.kind), 100 * full,
                     divided_ == 0 ? "" : fmt::format(", {} records divided", divided_));
}

}  // namespace tandem
