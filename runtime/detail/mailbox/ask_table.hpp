// runtime/detail/mailbox/ask_table.hpp — the table of a loop's pending asks, to which replies are
// delivered.
//
// A reply names its ask by index and generation; the slot itself lives in the asking coroutine's
// frame. An ask that is over (answered, late, cancelled) leaves the table, so that a later reply
// finds a newer generation and is dropped.
// Thread rule: the loop's thread. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/util/planted.hpp"

namespace tandem::detail {

struct AskSlotBase;

struct AskKey {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // 0 names no ask
};

class AskTable {
 public:
  AskKey add(AskSlotBase& slot) {
    if (free_ == kNone) {
      entries_.push_back({nullptr, 1, kNone});
      free_ = static_cast<std::uint32_t>(entries_.size() - 1);
    }
    const std::uint32_t index = free_;
    Entry& entry = entries_[index];
    free_ = entry.next_free;
    entry.slot = &slot;
    ++pending_;
    return {index, entry.generation};
  }

  /// Removes the slot from the table and returns it; null if the ask is over.
  AskSlotBase* take(AskKey key) noexcept {
    if (key.generation == 0 || entries_[key.index].generation != key.generation) {
      if (!planted(Bug::kLateReplyDelivered) || entries_[key.index].slot == nullptr) {
        return nullptr;
      }
    }
    Entry& entry = entries_[key.index];
    AskSlotBase* slot = entry.slot;
    if (++entry.generation == 0) {
      entry.generation = 1;
    }
    entry.slot = nullptr;
    entry.next_free = free_;
    free_ = key.index;
    --pending_;
    return slot;
  }

  /// True while the ask is not over.
  [[nodiscard]] bool waits(AskKey key) const noexcept {
    return key.generation != 0 && entries_[key.index].generation == key.generation;
  }

  [[nodiscard]] std::uint32_t pending() const noexcept { return pending_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Entry {
    AskSlotBase* slot;
    std::uint32_t generation;
    std::uint32_t next_free;
  };
  std::vector<Entry> entries_;
  std::uint32_t free_ = kNone;
  std::uint32_t pending_ = 0;
};

}  // namespace tandem::detail
