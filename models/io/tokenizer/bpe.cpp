#include "models/io/tokenizer/bpe.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace tandem {
namespace {

// Up to here a scan over all pairs per merge beats the heap's bookkeeping.
constexpr std::size_t kShortWord = 24;

std::uint64_t spread(std::uint64_t key) noexcept {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15u;
  return key ^ (key >> 29);
}

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : entries_(std::bit_ceil(merges * 2 + 2)), mask_(entries_.size() - 1) {}

bool MergeTable::add(std::int32_t left, std::int32_t right, std::uint32_t rank,
                     std::int32_t joined) {
  const std::uint64_t pair = key(left, right);
  for (std::size_t i = spread(pair) & mask_;; i = (i + 1) & mask_) {
    if (entries_[i].pair == pair) {
      return false;
    }
    if (entries_[i].pair == kEmpty) {
      entries_[i] = {pair, rank, joined};
      ++size_;
      return true;
    }
  }
}

const MergeTable::Entry* MergeTable::find(std::int32_t left, std::int32_t right) const noexcept {
  const std::uint64_t pair = key(left, right);
  for (std::size_t i = spread(pair) & mask_;; i = (i + 1) & mask_) {
    if (entries_[i].pair == pair) {
      return &entries_[i];
    }
    if (entries_[i].pair == kEmpty) {
      return nullptr;
    }
  }
}

void BpeMerger::merge(const MergeTable& table, std::vector<std::int32_t>& symbols) {
  if (symbols.size() <= kShortWord) {
    merge_short(table, symbols);
  } else {
    merge_long(table, symbols);
  }
}

void BpeMerger::merge_short(const MergeTable& table, std::vector<std::int32_t>& symbols) {
  // The entry that joins symbol i with the next one; a merge changes two of them.
  std::array<const MergeTable::Entry*, kShortWord> joins{};
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) {
    joins[i] = table.find(symbols[i], symbols[i + 1]);
  }
  while (count > 1) {
    const MergeTable::Entry* best = nullptr;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (joins[i] != nullptr && (best == nullptr || joins[i]->rank < best->rank)) {
        best = joins[i];
        at = i;
      }
    }
    if (best == nullptr) {
      break;
    }
    symbols[at] = best->joined;
    --count;
    for (std::size_t i = at + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      if (i + 1 < count) {
        joins[i] = joins[i + 1];
      }
    }
    if (at > 0) {
      joins[at - 1] = table.find(symbols[at - 1], symbols[at]);
    }
    if (at + 1 < count) {
      joins[at] = table.find(symbols[at], symbols[at + 1]);
    }
  }
  symbols.resize(count);
}

void BpeMerger::push(const MergeTable& table, std::int32_t left) {
  const Node& node = nodes_[static_cast<std::size_t>(left)];
  if (node.next < 0) {
    return;
  }
  const std::int32_t right_id = nodes_[static_cast<std::size_t>(node.next)].id;
  if (const MergeTable::Entry* entry = table.find(node.id, right_id)) {
    heap_.push_back({entry->rank, left, node.id, right_id});
    std::push_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    });
  }
}

void BpeMerger::merge_long(const MergeTable& table, std::vector<std::int32_t>& symbols) {
  const auto count = static_cast<std::int32_t>(symbols.size());
  nodes_.clear();
  heap_.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    nodes_.push_back({symbols[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) {
    push(table, i);
  }
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
    });
    heap_.pop_back();
    Node& left = nodes_[static_cast<std::size_t>(top.left)];
    if (left.id != top.left_id || left.next < 0 ||
        nodes_[static_cast<std::size_t>(left.next)].id != top.right_id) {
      continue;  // one of the two was joined with another neighbour in the meantime
    }
    Node& right = nodes_[static_cast<std::size_t>(left.next)];
    left.id = table.find(top.left_id, top.right_id)->joined;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      nodes_[static_cast<std::size_t>(left.next)].previous = top.left;
    }
    push(table, top.left);
    if (left.previous >= 0) {
      push(table, left.previous);
    }
  }
  symbols.clear();
  for (std::int32_t i = 0; i >= 0; i = nodes_[static_cast<std::size_t>(i)].next) {
    symbols.push_back(nodes_[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace tandem
