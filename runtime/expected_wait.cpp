#include "runtime/expected_wait.hpp"

#include <cstdlib>
#include <string_view>

#include <sched.h>

#include "runtime/thread.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kSleepLeastNs = 20'000;      // a shorter timed sleep is not worth it
constexpr std::int64_t kErrorMostNs = 1'000'000;    // beyond, a guess is just wrong
constexpr std::int64_t kOversleepMostNs = 100'000;  // nor is more allowed for
constexpr std::int64_t kPatience = 4;               // wake-ups that a short wait may be late
constexpr std::int64_t kSleptLeastNs = 1'000;  // less was no sleep: something was there already
constexpr std::uint32_t kSkipMost = 64;
// A spin that lasts longer than it may by this much has lost its CPU: others want it, for long.
constexpr std::int64_t kTakenNs = 50'000;
constexpr std::uint32_t kSkipTaken = 1000;

std::int64_t median(std::int64_t a, std::int64_t b, std::int64_t c) noexcept {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

}  // namespace

Spin spin_setting() {
  const char* text = std::getenv("TANDEM_SPIN");
  const std::string_view given = text != nullptr ? text : "";
  if (given.empty() || given == "auto") {
    return Spin::kAuto;
  }
  if (given == "never") {
    return Spin::kNever;
  }
  throw user_error("environment", "TANDEM_SPIN is \"{}\"; it takes auto or never", given);
}

ExpectedWait::Plan ExpectedWait::begin(std::int64_t now_ns, bool may_spin,
                                       std::int64_t deadline_ns) noexcept {
  began_ns_ = now_ns;
  asked_ns_ = 0;
  guess_ns_ = count_ >= 3U * lag_ ? guess(lag_) : -1;
  if (spin_ == Spin::kAlways) {
    return {.spin_until_ns = now_ns + kSpinMostNs};
  }
  if (spin_ == Spin::kNever || errors_made_ < kErrors / 2 || guess_ns_ < 0) {
    return {};
  }
  if (skip_ > 0) {
    --skip_;
    return {};
  }
  const std::int64_t early_ns = guess_ns_ + early_ns_ - oversleep_ns_;
  const std::int64_t sleep_ns = early_ns >= kSleepLeastNs ? early_ns : 0;
  const std::int64_t latest_ns = guess_ns_ + late_ns_ + wake_up_ns_;
  fill_account(now_ns);
  const std::int64_t most_ns = std::min(kSpinMostNs, balance_ns_ - wake_up_ns_);
  if (!may_spin || deadline_ns - now_ns < latest_ns || latest_ns - sleep_ns > most_ns) {
    return {};
  }
  if (sleep_ns > 0) {
    asked_ns_ = now_ns + sleep_ns;
    return {.sleep_until_ns = asked_ns_, .spin_until_ns = now_ns + latest_ns};
  }
  // Too short for a timed sleep: to look on for a while costs less than to sleep in the end.
  const std::int64_t patient_ns = latest_ns + (kPatience - 1) * wake_up_ns_;
  return {.spin_until_ns = now_ns + std::min({patient_ns, most_ns, deadline_ns - now_ns})};
}

void ExpectedWait::overslept(std::int64_t now_ns) noexcept {
  oversleeps_[timed_sleeps_++ % kOversleeps] = std::min(now_ns - asked_ns_, kOversleepMostNs);
  if (timed_sleeps_ >= kOversleeps) {
    oversleep_ns_ = *std::ranges::max_element(oversleeps_);
  }
}

void ExpectedWait::spun(std::int64_t since_ns, std::int64_t now_ns, bool found) noexcept {
  // Found, a spin saved a sleep and a wake-up, but for those of a timed sleep before it.
  const std::int64_t sleeps = (asked_ns_ != 0 ? 1 : 0) - (found ? 1 : 0);
  const std::int64_t cost_ns = std::max<std::int64_t>(0, now_ns - since_ns + sleeps * wake_up_ns_);
  balance_ns_ -= cost_ns;
  cost_ns_ += cost_ns;
  asked_ns_ = 0;
  if (now_ns - since_ns > kSpinMostNs + kTakenNs) {
    skip_ = skip_after_miss_ = kSkipTaken;
  } else if (found) {
    skip_after_miss_ = 1;
  } else {
    skip_ = skip_after_miss_;
    skip_after_miss_ = std::min(kSkipMost, skip_after_miss_ * 2);
  }
}

void ExpectedWait::end(std::int64_t now_ns) noexcept {
  if (asked_ns_ != 0) {
    // It came before the timed sleep's end. A thread that is asleep sees it late and learns a
    // length that is too long, so without this it would sleep too long for ever.
    oversleep_ns_ = std::min(kOversleepMostNs, 2 * oversleep_ns_);
  }
  wake_up_ns_ = next_wake_up_ns_;
  if (spin_ == Spin::kAuto) {
    learn(now_ns - began_ns_);
  }
}

// The least of the last ones: what a sleep runs beside itself, a reactor's handlers, is no part of
// it. The thread that wakes it took 0.7 to 0.85 as much again (bench/results/); less is counted.
void ExpectedWait::slept(std::int64_t cpu_ns) noexcept {
  if (cpu_ns < kSleptLeastNs) {
    return;
  }
  slept_[measured_++ % kMeasured] = cpu_ns;
  if (measured_ >= kMeasured) {
    next_wake_up_ns_ =
        std::clamp(*std::ranges::min_element(slept_) * 3 / 2, kWakeUpNs, kWakeUpMostNs);
  }
}

std::int64_t ExpectedWait::guess(int lag) const noexcept {
  const auto ago = [&](int waits) { return lengths_[(count_ - waits) % kKept]; };
  return median(ago(lag), ago(2 * lag), ago(3 * lag));
}

void ExpectedWait::learn(std::int64_t length_ns) noexcept {
  if (guess_ns_ >= 0) {
    errors_[errors_made_++ % kErrors] = length_ns - guess_ns_;
    std::array sorted = errors_;
    std::sort(sorted.begin(), sorted.begin() + std::min<std::uint32_t>(errors_made_, kErrors));
    early_ns_ = sorted[1];
    late_ns_ = sorted[std::clamp<std::uint32_t>(errors_made_, 2, kErrors) - 2];
  }
  for (int lag = 1; lag <= kLags && count_ >= 3U * lag; ++lag) {
    const std::int64_t off_ns = std::min(std::abs(length_ns - guess(lag)), kErrorMostNs);
    std::int64_t& smoothed_ns = off_of_lag_[lag];
    smoothed_ns = count_ == 3U * lag ? off_ns : smoothed_ns + (off_ns - smoothed_ns) / 8;
    // Another distance only if it is clearly better: the errors that were kept are not its own.
    if (smoothed_ns < off_of_lag_[lag_] * 3 / 4) {
      lag_ = lag;
    }
  }
  lengths_[count_ % kKept] = length_ns;
  count_ = count_ < 2 * kKept ? count_ + 1 : kKept + 1;  // the same place, and all are set
  is_short_ = errors_made_ >= kErrors / 2 && guess(lag_) + late_ns_ <= kSpinMostNs;
}

ExpectedWait::Resting::Resting(bool counted) noexcept : counted_(counted) {
  if (counted_) {
    thread::leave_runtime();
  }
}

ExpectedWait::Resting::~Resting() {
  if (counted_) {
    thread::enter_runtime();
  }
}

bool ExpectedWait::has_cpu() noexcept { return thread::spare_cpus() >= 1; }

// A thread that begins to compute finds the CPU free within a look; and one that was woken on this
// CPU, maybe by us and to do what we wait for, goes first.
bool ExpectedWait::goes_on(std::int64_t now_ns, std::int64_t until_ns) const noexcept {
  sched_yield();
  return now_ns < until_ns && (has_cpu() || spin_ == Spin::kAlways);
}

void ExpectedWait::fill_account(std::int64_t now_ns) noexcept {
  const std::int64_t income_ns = (now_ns - filled_ns_) / kShareOf;
  balance_ns_ = std::min(kBurstNs, balance_ns_ + income_ns);
  filled_ns_ = now_ns;
}

}  // namespace tandem
