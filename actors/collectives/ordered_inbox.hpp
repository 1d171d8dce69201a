// actors/collectives/ordered_inbox.hpp — items numbered 0, 1, 2, ... that arrive in any order and
// leave strictly by number.
// Invariant: an item leaves only after all items with lower numbers have left; each number is used
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/util/check.hpp"

namespace tandem {

template <class T>
class OrderedInbox {
 public:
  /// An item may be at most `max_ahead - 1` numbers ahead of the one that leaves next.
  explicit OrderedInbox(std::size_t max_ahead) : items_(max_ahead) {}

  void put(std::uint64_t order, T item) {
    TANDEM_CHECK_LE(next_, order, "an order number is used once");
    TANDEM_CHECK_LT(order - next_, items_.size(), "an item is too far ahead of its turn");
    std::optional<T>& place = items_[order % items_.size()];
    TANDEM_CHECK(!place.has_value(), "an order number is used once");
    place.emplace(std::move(item));
    ++held_;
  }

  /// Whether the item whose turn it is has arrived.
  [[nodiscard]] bool ready() const noexcept { return items_[next_ % items_.size()].has_value(); }

  /// Removes and returns the item whose turn it is. Call it only while ready().
  T take() {
    std::optional<T>& place = items_[next_ % items_.size()];
    TANDEM_CHECK(place.has_value(), "only an item that has arrived leaves");
    T item = std::move(*place);
    place.reset();
    ++next_;
    --held_;
    return item;
  }

  /// Calls `visit` with every item, whether or not its turn has come, and removes it.
  template <class Visit>
  void drop_all(Visit visit) {
    for (std::optional<T>& place : items_) {
      if (place.has_value()) {
        visit(*place);
        place.reset();
      }
    }
    held_ = 0;
  }

  [[nodiscard]] std::uint64_t next_order() const noexcept { return next_; }
  [[nodiscard]] std::size_t held() const noexcept { return held_; }

 private:
  std::vector<std::optional<T>> items_;
  std::uint64_t next_ = 0;
  std::size_t held_ = 0;
};

}  // namespace tandem
