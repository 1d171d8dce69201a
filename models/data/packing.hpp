// models/data/packing.hpp — packs records side by side into rows; a row then counts as a record.
//
// A row of the sampler, of an epoch and of a checkpoint is a pack. The records of a pack are a pure
// function of (kind, room, seed, lengths), so every rank and every resumed run computes them by
// itself. Each epoch has the same packs in another order. A document cannot see the others of its
// row.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "models/data/token_records.hpp"
#include "runtime/util/enum_names.hpp"

namespace tandem {

/// How records become rows. kOff: each record is a row. kBfd: whole records share a row, chosen by
/// best fit. kWrapped: all records form one stream, which is cut where a row is full.
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
  /// Permutes the records by the seed. kBfd then packs 4096 of them at a time by
  /// best_fit_decreasing(), and cuts records that are longer than a row; kWrapped makes them one
  /// stream. `records` must outlive this object. Not for Packing::kOff.
  Packs(const TokenRecords& records, const PackingOptions& options);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()) - 1; }
  /// These return the tokens of pack i, of the longest pack, and of all packs.
  [[nodiscard]] std::int64_t length(std::int64_t i) const;
  [[nodiscard]] std::int64_t longest() const { return longest_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// Returns the number of records that continue in another row.
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
  /// Returns the number of a record's tokens that are in rows.
  [[nodiscard]] std::int64_t kept(std::int64_t record) const;

  const TokenRecords* records_;
  PackingOptions options_;
  std::vector<std::int32_t> order_;  // of all records
  std::vector<Place> begins_;        // of each pack, and the end of the last one
  std::int64_t longest_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t divided_ = 0;
};

/// Packs items of these lengths, each at most `room`: takes the longest item first, and puts each
/// into the fullest pack that has room for it (of equally full packs, the oldest). Returns the
/// items of each pack in that order.
[[nodiscard]] std::vector<std::vector<std::int32_t>> best_fit_decreasing(
    const std::vector<std::int64_t>& lengths, std::int64_t room);

}  // namespace tandem
