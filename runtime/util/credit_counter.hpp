// runtime/util/credit_counter.hpp — the credits of a bounded queue: senders take them, the one
// consumer gives them back.
//
// It has two counters that only grow, so that senders and the consumer write different cache lines:
// the credits that senders took (with the closed bit in it) and the credits that the consumer gave
// back. Senders keep the value of the second counter that they saw last beside the first, and look
// at the consumer's line only when the credits that they know of are used up. Explored by
// tests/model/.
// Thread rule: reserve() and close() from any thread, give_back() from the consumer's.
// Invariant: never more than `credits` are out. Once closed, no credit is taken: the number of
// those taken is final.
#pragma once

#include <cstdint>

#include "runtime/util/atomics.hpp"

namespace tandem {

enum class Reserved : unsigned char { kYes, kFull, kClosed };

template <class Atomics>
class BasicCreditCounter {
 public:
  explicit BasicCreditCounter(std::uint32_t credits) noexcept : credits_(credits) {}

  [[nodiscard]] Reserved reserve() noexcept { return reserve_below(credits_); }
  /// Does what reserve() does with another bound: `most` credits may be out.
  [[nodiscard]] Reserved reserve_below(std::uint64_t most) noexcept {
    std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    for (;;) {
      // One test for the usual case: the difference is too large if the counter is closed, if the
      // credits are used up, or if `taken` is older than `seen_`. acquire, here and below: the slot
      // that the consumer freed is free.
      if (taken - seen_.load(std::memory_order_acquire) >= most) [[unlikely]] {
        if ((taken & kClosedBit) != 0) {
          return Reserved::kClosed;
        }
        const std::uint64_t given = given_back_.load(std::memory_order_acquire);
        if (static_cast<std::int64_t>(taken - given) >= static_cast<std::int64_t>(most)) {
          return Reserved::kFull;
        }
        // Another sender may have stored a newer value; then this one only makes a sender look once
        // more. release: as give_back().
        seen_.store(given, std::memory_order_release);
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
  /// Returns the credits that are taken and not given back yet. Exact for the consumer once closed;
  /// otherwise a snapshot.
  [[nodiscard]] std::uint64_t out() const noexcept {
    // Read in this order, so that the result is never below zero.
    const std::uint64_t given = given_back_.load(std::memory_order_acquire);
    return (taken_.load(std::memory_order_relaxed) & ~kClosedBit) - given;
  }
  [[nodiscard]] std::uint32_t credits() const noexcept { return credits_; }

 private:
  static constexpr std::uint64_t kClosedBit = std::uint64_t{1} << 63;
  template <class T>
  using Atomic = typename Atomics::template Atomic<T>;

  alignas(64) Atomic<std::uint64_t> taken_{0};
  Atomic<std::uint64_t> seen_{0};  // of given_back_, by a sender
  const std::uint32_t credits_;
  alignas(64) Atomic<std::uint64_t> given_back_{0};
};

using CreditCounter = BasicCreditCounter<StdAtomics>;

}  // namespace tandem
