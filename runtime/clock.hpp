// runtime/clock.hpp — the source of a loop's time: the real clock, or one that a test moves.
//
// Thread rule: now() from any thread; ManualClock is moved on the loop's thread (or while no loop
// runs).
//
//   ManualClock clock;
//   EventLoop loop({.name = "test", .clock = &clock});   // sleep_for(1h) returns at once
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ratio>
#include <type_traits>

namespace tandem {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// Converts `duration` to the loop's unit, limited to the longest (or shortest) value that fits.
template <class Rep, class Period>
[[nodiscard]] constexpr Duration saturated(std::chrono::duration<Rep, Period> duration) noexcept {
  using Factor = std::ratio_divide<Period, std::nano>;
  if constexpr (std::is_integral_v<Rep> && Factor::den == 1) {
    std::int64_t ns = 0;
    if (__builtin_mul_overflow(duration.count(), Factor::num, &ns)) {
      return duration.count() > 0 ? Duration::max() : Duration::min();
    }
    return Duration(ns);
  } else {
    constexpr long double kMost = 9223372036854775807.0L;  // the largest int64
    const long double ns = std::chrono::duration<long double, std::nano>(duration).count();
    if (!(ns < kMost)) {
      return Duration::max();
    }
    return ns <= -kMost ? Duration::min() : std::chrono::duration_cast<Duration>(duration);
  }
}

/// Returns `from` plus `by`; if the sum does not fit, TimePoint::max() (which never comes) or
/// min().
[[nodiscard]] constexpr TimePoint time_after(TimePoint from, Duration by) noexcept {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(from.time_since_epoch().count(), by.count(), &sum)) {
    return by.count() > 0 ? TimePoint::max() : TimePoint::min();
  }
  return TimePoint(Duration(sum));
}

/// Returns the real time in ns, on any thread and whatever clock a loop has.
[[nodiscard]] inline std::int64_t real_now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const noexcept = 0;
  /// Called if the loop has nothing to do before `next`. Returns true if the clock jumped there;
  /// false if real time passes, so that the loop sleeps.
  virtual bool skip_to(TimePoint next) noexcept = 0;
  /// True if time passes by itself; if not, the loop sleeps without a timeout.
  [[nodiscard]] virtual bool runs_by_itself() const noexcept = 0;

  /// The clock of std::chrono::steady_clock.
  static Clock& real() noexcept;
};

class ManualClock final : public Clock {
 public:
  enum class Idle {
    kJump,
    kWait
  };  // what an idle loop does: jump to the next timer, or wait to be moved
  explicit ManualClock(Idle idle = Idle::kJump) noexcept : idle_(idle) {}

  [[nodiscard]] TimePoint now() const noexcept override {
    return TimePoint(Duration(now_ns_.load(std::memory_order_relaxed)));
  }
  void advance(Duration by) noexcept {
    now_ns_.store(time_after(now(), by).time_since_epoch().count(), std::memory_order_relaxed);
  }
  bool skip_to(TimePoint next) noexcept override;
  [[nodiscard]] bool runs_by_itself() const noexcept override { return false; }

 private:
  Idle idle_;
  std::atomic<std::int64_t> now_ns_{0};
};

}  // namespace tandem
