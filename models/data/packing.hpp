// models/data/packing.hpp — packs records side by side into rows; a row then counts as a record.
//
// A row of the sampler, of an epoch and of a checkpoint is a pack. Which records a pack has is a
// pure function of (kind, room, seed, lengths): every rank and every resumed run finds it by
// itself, and each epoch has the same packs, in another order. A document cannot see the others of
// its row.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "models/data/token_records.hpp"
#include "runtime/util/enum_names.hpp"

namespace tandem {

/// How records become rows: one each; whole ones, the best fit for what is left of a row; all of
/// them as one stream, cut where a row is full.
enum class Packing : std::uint8_t { kOff, kBfd, kWrapped };

template <>
inline constexpr auto kEnumNames<Packing> =
    std::array{EnumName{Packing::kOff, "off"}, EnumName{Packing::kBfd, "bfd"},
               EnumName{Packing::kWrapped, "wrapped"}};

struct PackingOptions {
  Packing kind = Packing::kOff;
  std::int64_t room = 2048;  // tokens of a row
  std::uint64_t seed = 0;
};

/// Tokens [begin, end) of a record: a document of a row.
struct PackPiece {
  std::int64_t record;
  std::int64_t begin;
  std::int64_t end;
};

class Packs {
 public:
  /// Best-fit decreasing over the records that follow each other in a permutation by the seed,
  /// 4096 at a time, longer ones than a row cut; or that permutation as one stream. `records` must
  /// live as long as this. Not for Packing::kOff.
  Packs(const TokenRecords& records, const PackingOptions& options);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  /// Tokens of pack i, of the longest one, and of all.
  [[nodiscard]] std::int64_t length(std::int64_t i) const;
  [[nodiscard]] std::int64_t longest() const { return longest_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// Records that go on in another row.
  [[nodiscard]] std::int64_t divided() const { return divided_; }
  [[nodiscard]] std::vector<PackPiece> pieces(std::int64_t i) const;
  /// The hash of the records in every pack.
  [[nodiscard]] std::string fingerprint() const;

  /// "3 packs of up to 512 tokens (bfd), 97.1 % full".
  [[nodiscard]] std::string text() const;

 private:
  /// A place in the stream of all records in `order_`.
  struct Place {
    std::int64_t at = 0;      // in order_
    std::int64_t offset = 0;  // tokens of that record that lie before
    bool operator==(const Place&) const = default;
  };

  void fit(std::int64_t window);
  void wrap();
  /// Tokens of a record that are in rows.
  [[nodiscard]] std::int64_t kept(std::int64_t record) const;

  const TokenRecords* records_;
  PackingOptions options_;
  std::vector<std::int32_t> order_;  // of all records
  std::vector<Place> begins_;        // of each pack, and the end of the last one
  std::int64_t longest_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t divided_ = 0;
};

/// Packs of items of these lengths, each at most `room`: the longest one first, each into the
/// fullest pack that has room for it, among such into the oldest one. Items in that order.
[[nodiscard]] std::vector<std::vector<std::int32_t>> best_fit_decreasing(
    const std::vector<std::int64_t>& lengths, std::int64_t room);

}  // namespace tandem
