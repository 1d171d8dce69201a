// tests/support/fakes/fake_run.hpp — training on the fake of CUDA's calls, at paces that put what
// must wait to the test.
#pragma once

#include <chrono>

#include <gtest/gtest.h>

#include "tests/support/fakes/fake_gpu.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem::test {

/// The work that is slow on the device, so that a missing wait for it shows.
struct Pace {
  const char* name;
  Duration segment;
  Duration copy;
};
inline constexpr Pace kPaces[] = {
    {"slow segments", std::chrono::microseconds(300), std::chrono::microseconds(1)},
    {"slow copies", std::chrono::microseconds(1), std::chrono::microseconds(200)}};

/// The fake, and a setting that runs on it.
struct FakeRun {
  FakeCuda cuda{Clock::real()};

  explicit FakeRun(const Pace& pace) {
    cuda.copy_cost = pace.copy;
    cuda.pageable_is_wrong = true;
  }
  static toy::Setting on_gpu(toy::Setting setting, const Pace& pace) {
    setting.device = DeviceKind::kCuda;
    setting.open_gpu = fake_gpus(pace.segment);
    return setting;
  }
  void expect_orderly() const {
    EXPECT_EQ(cuda.pageable_copies(), 0);
    EXPECT_EQ(cuda.frees_in_use(), 0);
    EXPECT_EQ(cuda.used_bytes(), 0U);
    EXPECT_EQ(cuda.pinned_pieces(), 0U);
    EXPECT_EQ(cuda.live_events(), 0);
  }
};

}  // namespace tandem::test
