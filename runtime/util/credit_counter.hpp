// runtime/util/credit_counter.hpp — the credits of a bounded queue: senders take them, the one consumer gives them back.
//
// Two counters that only grow, so that senders and consumer write different lines: how many were taken by senders (with
// the closed bit in it) and how many the consumer gave back. Explored by tests/model/.
// Thread rule: reserve() and close() from any thread, give_back() from the consumer's.
// Invariant: never more than `credits` are out. Once closed, no credit is taken: the number of those taken is final.
#pragma once

#include <cstdint>

#include "runtime/util/atomics.hpp"

namespace tandem {

enum class Reserved : unsigned char { kYes, kFull, kClosed };

template <class Atomics>
class BasicCreditCounter {
 public:
  explicit BasicCreditCounter(std::uint32_t credits) noexcept : credits_(credits) {}

  [[nodiscard]] Reserved reserve() noexcept {
    std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    for (;;) {
      if ((taken & kClosedBit) != 0) [[unlikely]] {
        return Reserved::kClosed;
      }
      // acquire: the slot that the consumer freed is free. Signed: `taken` may be older than what was given back by now.
      const std::uint64_t given = given_back_.load(std::memory_order_acquire);
      if (static_cast<std::int64_t>(taken - given) >= static_cast<std::int64_t>(credits_)) {
        return Reserved::kFull;
      }
      if (taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed)) {
        return Reserved::kYes;
      }
    }
  }
  void give_back() noexcept {
    // Only the consumer writes it; release: the sender that sees it may use the slot.
    given_back_.store(given_back_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void close() noexcept { taken_.fetch_or(kClosedBit, std::memory_order_relaxed); }

  [[nodiscard]] bool closed() const noexcept {
    return (taken_.load(std::memory_order_relaxed) & kClosedBit) != 0;
  }
  /// Taken and not given back yet. Exact for the consumer once closed; for others a moment's picture.
  [[nodiscard]] std::uint64_t out() const noexcept {
    // In this order, so that it is never below zero.
    const std::uint64_t given = given_back_.load(std::memory_order_acquire);
    return (taken_.load(std::memory_order_relaxed) & ~kClosedBit) - given;
  }
  [[nodiscard]] std::uint32_t credits() const noexcept { return credits_; }

 private:
  static constexpr std::uint64_t kClosedBit = std::uint64_t{1} << 63;
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  std::uint32_t credits_;
  alignas(64) Atomic<std::uint64_t> taken_{0};
  alignas(64) Atomic<std::uint64_t> given_back_{0};
};

using CreditCounter = BasicCreditCounter<StdAtomics>;

}  // namespace tandem
