// models/io/tokenizer/bpe.hpp — byte pair encoding of one word: join the lowest-ranked pair,
// leftmost first, until none is left.
//
// Invariant: a merge joins two tokens into a longer one, so merging always ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

/// Pair of token ids -> (rank, id of the joined token). Open addressing; read-only after the last
/// add.
class MergeTable {
 public:
  struct Entry {
    std::uint64_t pair = kEmpty;
    std::uint32_t rank = 0;
    std::int32_t joined = 0;
  };

  explicit MergeTable(std::size_t merges = 0);
  /// Returns false if the pair was there already.
  bool add(std::int32_t left, std::int32_t right, std::uint32_t rank, std::int32_t joined);
  [[nodiscard]] const Entry* find(std::int32_t left, std::int32_t right) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t key(std::int32_t left, std::int32_t right) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::vector<Entry> entries_;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
};

/// Merges the symbols of one word in place (the vector shrinks). Keeps its scratch memory between
/// words.
class BpeMerger {
 public:
  void merge(const MergeTable& table, std::vector<std::int32_t>& symbols);

 private:
  struct Node {
    std::int32_t id;
    std::int32_t previous;
    std::int32_t next;
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t left;  // position of the left symbol
    std::int32_t left_id;
    std::int32_t right_id;
  };
  static void merge_short(const MergeTable& table, std::vector<std::int32_t>& symbols);
  void merge_long(const MergeTable& table, std::vector<std::int32_t>& symbols);
  void push(const MergeTable& table, std::int32_t left);

  std::vector<Node> nodes_;
  std::vector<Candidate> heap_;
};

}  // namespace tandem
