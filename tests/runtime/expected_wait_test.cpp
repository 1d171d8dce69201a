// When waits are met awake, what that costs, and when there is only sleep: on a clock of the test's
// own, on which a sleeping thread wakes up 30 us too late, and one that set a time 15 to 25.
#include "runtime/expected_wait.hpp"

#include <cstdlib>
#include <functional>
#include <utility>

#include <gtest/gtest.h>

#include "runtime/thread.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/random.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kUs = 1'000;
constexpr std::int64_t kMs = 1'000'000;

/// A thread that waits, and works a little in between.
class Waiter {
 public:
  explicit Waiter(Spin spin = Spin::kAuto) : expected(spin) {}

  /// How much later than `length_ns` after its beginning the wait ends.
  std::int64_t wait(std::int64_t length_ns) {
    const std::int64_t comes_ns = now_ns_ + length_ns;
    const std::int64_t cost_ns = expected.cost_ns();
    expected.wait([this] { return now_ns_; },
                  [&] {
                    now_ns_ += 20 + std::exchange(taken_ns, 0);
                    spun_ns_ += 20;
                    return now_ns_ >= comes_ns;
                  },
                  [&](std::int64_t until_ns) {
                    slept_cpu_ns += sleep_costs_ns;
                    const bool comes = comes_ns <= until_ns;
                    now_ns_ = comes ? std::max(now_ns_, comes_ns) + 30 * kUs
                                    : until_ns + random_.between(15 * kUs, 25 * kUs);
                    return comes;
                  },
                  {.cpu_now_ns = [] { return slept_cpu_ns; }});
    dearest_ns = std::max(dearest_ns, expected.cost_ns() - cost_ns);
    EXPECT_LE(expected.cost_ns(), now_ns_ / ExpectedWait::kShareOf + ExpectedWait::kBurstNs);
    const std::int64_t late_ns = now_ns_ - comes_ns;
    now_ns_ += 2 * kUs;  // work
    return late_ns;
  }
  /// The share of `waits` that were met within a microsecond; `length`: of the i-th.
  double met(int waits, const std::function<std::int64_t(int)>& length) {
    int count = 0;
    for (int i = 0; i < waits; ++i) {
      count += wait(length(i)) <= kUs ? 1 : 0;
    }
    return static_cast<double>(count) / waits;
  }
  [[nodiscard]] double share_spun() const {
    return static_cast<double>(spun_ns_) / static_cast<double>(now_ns_);
  }

  ExpectedWait expected;
  std::int64_t dearest_ns = 0;  // the dearest wait so far
  std::int64_t taken_ns = 0;    // for how long another thread runs in the middle of the next spin
  std::int64_t sleep_costs_ns = 0;              // in CPU time
  inline static std::int64_t slept_cpu_ns = 0;  // over all sleeps

 private:
  std::int64_t now_ns_ = 0;
  std::int64_t spun_ns_ = 0;
  Random random_{7};
};

TEST(ExpectedWait, MeetsRegularWaitsAwake) {
  Waiter waiter;
  Random random(1);
  const auto about_3_ms = [&](int) { return 3 * kMs + random.between(0, 10 * kUs); };
  waiter.met(40, about_3_ms);
  EXPECT_GE(waiter.met(1000, about_3_ms), 0.9);
  EXPECT_LT(waiter.share_spun(), 0.02);
}

TEST(ExpectedWait, KnowsASequenceThatRepeats) {
  Waiter waiter;
  constexpr std::int64_t kStep[] = {700 * kUs, 9 * kMs, 2 * kMs, 400 * kUs, 5 * kMs};
  const auto step = [&](int i) { return kStep[i % 5]; };
  waiter.met(150, step);
  EXPECT_GE(waiter.met(1000, step), 0.9);
  EXPECT_LT(waiter.share_spun(), 0.03);
}

TEST(ExpectedWait, LooksAgainAtOnceWhileWaitsAreShort) {
  Waiter waiter;
  const auto short_wait = [](int) { return 3 * kUs; };
  waiter.met(20, short_wait);
  EXPECT_TRUE(waiter.expected.is_short());
  EXPECT_EQ(waiter.met(1000, short_wait), 1.0);
  EXPECT_LT(waiter.expected.cost_ns(), kUs) << "sleeping would have cost more";
}

TEST(ExpectedWait, SleepsWhereNothingCanBeForetold) {
  Waiter waiter;
  Random random(2);
  EXPECT_LT(waiter.met(2000, [&](int) { return random.between(100 * kUs, 10 * kMs); }), 0.02);
  EXPECT_LT(waiter.share_spun(), 0.002);
}

TEST(ExpectedWait, SpendsNoMoreThanItsShare) {
  // Waits that a spin may last for, too different for a timed sleep: it would meet all of them, and
  // take the core. Not more of them: a spin yields its CPU, which on a busy machine takes a while.
  Waiter waiter;
  Random random(4);
  waiter.met(20'000, [&](int) { return random.between(20 * kUs, 140 * kUs); });
  EXPECT_GT(waiter.expected.cost_ns(), 2 * ExpectedWait::kBurstNs) << "what it may, it spends";
}  // the bound is looked at after each (Waiter::wait)

TEST(ExpectedWait, LearnsWhatASleepCosts) {
  Waiter waiter;
  waiter.sleep_costs_ns = 10 * kUs;
  Random random(5);
  waiter.met(400, [&](int) { return random.between(300 * kUs, 3 * kMs); });
  EXPECT_EQ(waiter.expected.wake_up_ns(), 15 * kUs) << "who wakes it works, too";
  // Beside such sleeps a spin of this length costs nothing, so there is no share that bounds it.
  const auto short_wait = [](int) { return 14 * kUs; };
  waiter.met(1000, short_wait);
  const std::int64_t cost_ns = waiter.expected.cost_ns();
  EXPECT_EQ(waiter.met(20'000, short_wait), 1.0);
  EXPECT_LT(waiter.expected.cost_ns() - cost_ns, kUs);
}

TEST(ExpectedWait, IsAsPatientAsASpinMayLast) {
  Waiter waiter;
  waiter.sleep_costs_ns = 20 * kUs;
  Random random(6);
  waiter.met(400, [&](int) { return random.between(300 * kUs, 3 * kMs); });
  ASSERT_EQ(waiter.expected.wake_up_ns(), ExpectedWait::kWakeUpMostNs);
  const auto too_short_for_a_sleep = [&](int) { return random.between(60 * kUs, 100 * kUs); };
  waiter.met(60, too_short_for_a_sleep);
  EXPECT_GE(waiter.met(200, too_short_for_a_sleep), 0.9);
}

TEST(ExpectedWait, BoundsWhatASleepIsSaidToCost) {
  ExpectedWait expected(Spin::kAuto);
  for (const std::int64_t ns : {100 * kMs, kUs}) {
    for (int i = 0; i < 8; ++i) {
      expected.slept(ns);
    }
    expected.end(0);
    EXPECT_EQ(expected.wake_up_ns(),
              ns > kUs ? ExpectedWait::kWakeUpMostNs : ExpectedWait::kWakeUpNs);
  }
}

TEST(ExpectedWait, SpinsOnceIntoARest) {
  Waiter waiter;
  waiter.met(200, [](int) { return 2 * kMs; });
  waiter.dearest_ns = 0;
  waiter.wait(std::int64_t{3600} * 1000 * kMs);
  EXPECT_GT(waiter.dearest_ns, 0);
  EXPECT_LE(waiter.dearest_ns, ExpectedWait::kSpinMostNs);
}

TEST(ExpectedWait, GivesUpWhereSpinsMiss) {
  Waiter waiter;
  waiter.met(200, [](int) { return 50 * kUs; });
  waiter.met(64, [](int) { return 20 * kMs; });
  const std::int64_t cost_ns = waiter.expected.cost_ns();
  Random random(3);
  waiter.met(1000, [&](int) { return random.between(300 * kUs, 3 * kMs); });
  EXPECT_LT(waiter.expected.cost_ns() - cost_ns, 20 * ExpectedWait::kSpinMostNs);
}

TEST(ExpectedWait, SleepsOnceASpinHasLostItsCpu) {
  Waiter waiter;
  const auto regular = [](int) { return 2 * kMs; };
  waiter.met(200, regular);
  waiter.taken_ns = 3 * kMs;
  waiter.wait(2 * kMs);
  EXPECT_EQ(waiter.taken_ns, 0) << "it did spin";
  EXPECT_EQ(waiter.met(999, regular), 0);
  waiter.met(10, regular);
  EXPECT_GE(waiter.met(200, regular), 0.9) << "and tries again";
}

TEST(ExpectedWait, LeavesTheCpusToThoseThatCompute) {
  const int spare = thread::spare_cpus();
  thread::enter_runtime(spare);
  Waiter waiter;
  EXPECT_EQ(waiter.met(200, [](int) { return 2 * kMs; }), 0);
  EXPECT_EQ(waiter.share_spun(), 0);
  thread::leave_runtime(spare);
  EXPECT_GT(waiter.met(200, [](int) { return 2 * kMs; }), 0.8) << "what it learned is kept";
}

TEST(ExpectedWait, AThreadThatWaitsDoesNotCompute) {
  const int spare = thread::spare_cpus();
  thread::enter_runtime();
  ExpectedWait expected(Spin::kNever);
  int spare_while_asleep = -1;
  expected.wait([] { return 0; }, [] { return false; },
                [&](std::int64_t) {
                  spare_while_asleep = thread::spare_cpus();
                  return true;
                },
                {.counted = true});
  EXPECT_EQ(spare_while_asleep, spare);
  EXPECT_EQ(thread::spare_cpus(), spare - 1);
  thread::leave_runtime();
}

TEST(ExpectedWait, NeverMeansNever) {
  Waiter waiter(Spin::kNever);
  EXPECT_EQ(waiter.met(200, [](int) { return 2 * kMs; }), 0);
  EXPECT_EQ(waiter.share_spun(), 0);
}

TEST(ExpectedWait, DoesNotSpinAcrossADeadline) {
  ExpectedWait expected(Spin::kAuto);
  std::int64_t now_ns = 0;
  for (int i = 0; i < 100; ++i) {
    (void)expected.begin(now_ns, true);
    expected.end(now_ns += kMs);
  }
  EXPECT_NE(expected.begin(now_ns, true, now_ns + 2 * kMs).spin_until_ns, 0);
  EXPECT_EQ(expected.begin(now_ns, true, now_ns + kMs / 2).spin_until_ns, 0);
}

TEST(ExpectedWait, IsPatientUntilADeadline) {
  ExpectedWait expected(Spin::kAuto);
  std::int64_t now_ns = 0;
  for (int i = 0; i < 100; ++i) {
    (void)expected.begin(now_ns, true);
    expected.end(now_ns += 10 * kUs);
  }
  EXPECT_EQ(expected.begin(now_ns, true).spin_until_ns, now_ns + 30 * kUs);
  EXPECT_EQ(expected.begin(now_ns, true, now_ns + 16 * kUs).spin_until_ns, now_ns + 16 * kUs);
  EXPECT_EQ(expected.begin(now_ns, true, now_ns + 12 * kUs).spin_until_ns, 0);
}

TEST(SpinSetting, IsAutoOrNever) {
  const char* const before = std::getenv("TANDEM_SPIN");
  const std::string kept = before != nullptr ? before : "";
  setenv("TANDEM_SPIN", "never", 1);
  EXPECT_EQ(spin_setting(), Spin::kNever);
  setenv("TANDEM_SPIN", "", 1);
  EXPECT_EQ(spin_setting(), Spin::kAuto);
  setenv("TANDEM_SPIN", "often", 1);
  EXPECT_THROW((void)spin_setting(), Error);
  setenv("TANDEM_SPIN", kept.c_str(), 1);
}

}  // namespace
}  // namespace tandem
