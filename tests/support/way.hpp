// tests/support/way.hpp — the devices that a test trains on without having one: the same story is
// told on each.
//
//   class Devices : public ::testing::TestWithParam<Way> {};
//   INSTANTIATE_TEST_SUITE_P(Ways, Devices, test::kWays, test::name_of_way);
//   ...
//   for (const Pace& pace : test::paces_of(GetParam())) {
//     const test::DeviceRun run(GetParam(), pace);
//     EXPECT_EQ(train(run.on_device(setting)), expected);
//   }
#pragma once

#include <optional>
#include <ostream>
#include <span>
#include <string>

#include "tests/support/fakes/fake_run.hpp"

namespace tandem::test {

/// kSim: the simulated device. kGpu: a GPU, on the fake of CUDA's calls.
enum class Way { kSim, kGpu };

inline const auto kWays = ::testing::Values(Way::kSim, Way::kGpu);
inline std::string name_of(Way way) { return way == Way::kSim ? "sim" : "gpu"; }
inline void PrintTo(Way way, std::ostream* out) { *out << name_of(way); }
inline std::string name_of_way(const ::testing::TestParamInfo<Way>& info) {
  return name_of(info.param);
}

/// Returns the paces of work that may be slow there; the simulated device has one pace.
inline std::span<const Pace> paces_of(Way way) {
  return std::span(kPaces).first(way == Way::kSim ? 1 : std::size(kPaces));
}

/// Steps of a run that is compared with the CPU's: the fake GPU takes the time of a real one.
inline int steps_on(Way way) { return way == Way::kSim ? 6 : 4; }

/// The device while a test trains on it.
class DeviceRun {
 public:
  explicit DeviceRun(Way way, const Pace& pace = kPaces[0], std::size_t memory_bytes = 0)
      : pace_(pace), memory_bytes_(memory_bytes) {
    if (way == Way::kGpu) {
      gpu_.emplace(pace);
      if (memory_bytes > 0) {
        gpu_->cuda.memory_bytes = memory_bytes;
      }
    }
  }
  [[nodiscard]] toy::Setting on_device(toy::Setting setting) const {
    if (gpu_) {
      return FakeRun::on_gpu(std::move(setting), pace_);
    }
    setting.device = DeviceKind::kSim;
    if (memory_bytes_ > 0) {
      setting.sim.memory_bytes = static_cast<double>(memory_bytes_);
    }
    return setting;
  }
  /// Expects that the fake GPU saw no missing wait, and that nothing is left on it.
  void expect_orderly() const {
    if (gpu_) {
      gpu_->expect_orderly();
    }
  }

 private:
  Pace pace_;
  std::size_t memory_bytes_;
  std::optional<FakeRun> gpu_;
};

}  // namespace tandem::test
