// runtime/expected_wait.hpp — predicts when a wait will end from earlier waits: a thread sleeps
// until shortly before, then spins for a bounded time.
//
// A training step repeats, so a thread's waits do, too: each is compared with those one, two ...
// kLags waits before it, and the distance at which they are most alike gives the next length (the
// median of three). The quantiles of that guess's recent errors say from when until when to spin,
// the latest of recent timed sleeps how much earlier to be woken. The wait is a plain sleep, as it
// is by default, if guesses are off by more than a spin may last, after several spins without
// success, if the budget is used up, or if all CPUs are computing. Threads that spin share the idle
// CPUs: each yields its CPU whenever it reads the clock. The budget: a spin costs its time minus
// the CPU time of the sleep and wake-up that it saved; kShare of the elapsed time is added. The
// cost of a sleep is measured now and then: some 20 us on a virtual machine, whose host has to wake
// its CPUs.
// Invariant: the cost of all spins by any time t is at most kShare * t + kBurstNs.
// Thread rule: the one thread that waits. The waking thread finds out elsewhere whether it sleeps
// (the inbox's tag, a mutex); a spinning thread only polls.
//
//   expected.wait(now, [&] { return !inbox.seems_empty(); },
//                 [&](std::int64_t until_ns) { return sleep(until_ns); }, {});
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "runtime/util/cpu_relax.hpp"

namespace tandem {

/// How a thread of the runtime waits for what others do.
enum class Spin {
  kAuto,    // as expected: this file
  kNever,   // sleeps
  kAlways,  // spins first, whatever it has learned and whatever it costs: for measuring
};

/// Returns the setting of TANDEM_SPIN, "auto" or "never"; kAuto if it is not set. Throws a user
/// error for any other value.
[[nodiscard]] Spin spin_setting();

class ExpectedWait {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  static constexpr int kShareOf = 33;                   // spins may cost 1/33 of the time
  static constexpr std::int64_t kBurstNs = 30'000'000;  // saved up at most: a second's worth
  static constexpr std::int64_t kSpinMostNs = 200'000;  // of one wait
  static constexpr std::int64_t kWakeUpNs = 5'000;  // CPU time of a sleep and its wake-up, at least
  static constexpr std::int64_t kWakeUpMostNs = 30'000;  // ... and at most
  static constexpr int kLags = 16;

  explicit ExpectedWait(Spin spin = spin_setting()) noexcept : spin_(spin) {}

  struct Plan {
    std::int64_t sleep_until_ns = 0;  // 0: no timed sleep comes before the spin
    std::int64_t spin_until_ns = 0;   // 0: no spin, only a sleep
  };
  /// Begins a wait that ends by `deadline_ns` at the latest, and returns its plan. `may_spin`: a
  /// CPU is idle.
  [[nodiscard]] Plan begin(std::int64_t now_ns, bool may_spin,
                           std::int64_t deadline_ns = kNever) noexcept;
  /// Records that the timed sleep has ended by its time.
  void overslept(std::int64_t now_ns) noexcept;
  /// Records the end of a spin: `found`, or the wait continues as a sleep.
  void spun(std::int64_t since_ns, std::int64_t now_ns, bool found) noexcept;
  /// The wait has ended.
  void end(std::int64_t now_ns) noexcept;
  /// Records the CPU time that one sleep took on the sleeping thread; used from the next wait on.
  void slept(std::int64_t cpu_ns) noexcept;

  /// True if the next wait is likely to be so short that polling again at once pays.
  [[nodiscard]] bool is_short() const noexcept {
    return spin_ == Spin::kAlways || (is_short_ && skip_ == 0);
  }
  /// The cost of all spins so far.
  [[nodiscard]] std::int64_t cost_ns() const noexcept { return cost_ns_; }
  /// CPU time of a sleep and its wake-up, of both threads, as far as is known.
  [[nodiscard]] std::int64_t wake_up_ns() const noexcept { return wake_up_ns_; }

  struct Options {
    bool counted = false;               // enter_runtime() counts the thread; not while it waits
    std::int64_t deadline_ns = kNever;  // the wait ends then at the latest
    std::int64_t (*cpu_now_ns)() = nullptr;  // of the thread; null: no sleep is measured
  };
  /// Does one whole wait. ready(): whether the awaited event has come. sleep(until_ns): sleeps
  /// until then at the latest; returns true if something else ended the sleep. now(): in ns.
  template <class Now, class Ready, class Sleep>
  void wait(Now now, Ready ready, Sleep sleep, Options options);

 private:
  /// While one lives, a counted thread does not count as computing.
  class Resting {
   public:
    explicit Resting(bool counted) noexcept;
    ~Resting();
    Resting(const Resting&) = delete;
    Resting& operator=(const Resting&) = delete;

   private:
    bool counted_;
  };

  static constexpr int kKept = 64;  // lengths: three of each lag
  static constexpr int kErrors = 16;
  static constexpr int kOversleeps = 8;
  static constexpr int kLooks = 32;      // between two looks at the clock
  static constexpr int kMeasured = 8;    // the last sleeps whose CPU time was measured
  static constexpr int kMeasuredOf = 7;  // one sleep in seven: steps seldom repeat in sevens

  [[nodiscard]] std::int64_t guess(int lag) const noexcept;
  void learn(std::int64_t length_ns) noexcept;
  template <class Sleep>
  bool measured(Sleep& sleep, std::int64_t until_ns, const Options& options);
  void fill_account(std::int64_t now_ns) noexcept;
  [[nodiscard]] static bool has_cpu() noexcept;
  [[nodiscard]] bool goes_on(std::int64_t now_ns, std::int64_t until_ns) const noexcept;

  Spin spin_;
  bool is_short_ = false;
  // Lengths in ns, the newest at (count_ - 1) % kKept.
  std::array<std::int64_t, kKept> lengths_{};
  std::uint32_t count_ = 0;
  std::array<std::int64_t, kLags + 1> off_of_lag_{};  // the smoothed error of each lag's guesses
  int lag_ = 1;
  std::array<std::int64_t, kErrors> errors_{};  // of the guesses that were made: length - guess
  std::uint32_t errors_made_ = 0;
  std::int64_t early_ns_ = 0;  // quantiles of errors_
  std::int64_t late_ns_ = 0;
  std::array<std::int64_t, kOversleeps> oversleeps_{};
  std::uint32_t timed_sleeps_ = 0;
  std::int64_t oversleep_ns_ = 60'000;  // this value until some are known
  std::array<std::int64_t, kMeasured> slept_{};
  std::uint32_t sleeps_ = 0;
  std::uint32_t measured_ = 0;
  std::int64_t wake_up_ns_ = kWakeUpNs;  // it does not change during a wait
  std::int64_t next_wake_up_ns_ = kWakeUpNs;
  // The wait under way:
  std::int64_t began_ns_ = 0;
  std::int64_t guess_ns_ = -1;  // of its length; -1: none
  std::int64_t asked_ns_ = 0;   // when its timed sleep was to end; 0: it had none
  // Misses in a row are followed by waits without a spin: 1, 2, 4 ... of them.
  std::uint32_t skip_ = 0;
  std::uint32_t skip_after_miss_ = 1;
  // The account:
  std::int64_t balance_ns_ = kBurstNs;
  std::int64_t filled_ns_ = 0;
  std::int64_t cost_ns_ = 0;
};

template <class Now, class Ready, class Sleep>
void ExpectedWait::wait(Now now, Ready ready, Sleep sleep, Options options) {
  const Resting resting(options.counted);
  const Plan plan = begin(now(), has_cpu(), options.deadline_ns);
  if (plan.sleep_until_ns != 0) {
    if (measured(sleep, plan.sleep_until_ns, options)) {
      return end(now());
    }
    overslept(now());
  }
  if (plan.spin_until_ns != 0) {
    const std::int64_t since_ns = now();
    bool found = false;
    std::int64_t now_ns = since_ns;
    do {
      for (int i = 0; i < kLooks && !found; ++i) {
        found = ready();
        cpu_relax();
      }
      now_ns = now();
    } while (!found && goes_on(now_ns, plan.spin_until_ns));
    spun(since_ns, now_ns, found);
    if (found) {
      return end(now_ns);
    }
  }
  measured(sleep, kNever, options);
  end(now());
}

template <class Sleep>
bool ExpectedWait::measured(Sleep& sleep, std::int64_t until_ns, const Options& options) {
  if (options.cpu_now_ns == nullptr || spin_ != Spin::kAuto || sleeps_++ % kMeasuredOf != 0) {
    return sleep(until_ns);
  }
  const std::int64_t before_ns = options.cpu_now_ns();
  const bool came = sleep(until_ns);
  slept(options.cpu_now_ns() - before_ns);
  return came;
}

}  // namespace tandem
