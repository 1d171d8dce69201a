#include "runtime/system/machine.hpp"

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>

#include "runtime/device/gpu_probe.hpp"

namespace tandem {
namespace {

TEST(Machine, CpusFollowTheAffinityMask) {
  const std::vector<int> all = machine::affinity();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_GE(machine::usable_cpus(), 1);
  EXPECT_LE(machine::usable_cpus(), static_cast<int>(all.size()));
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(all.front()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(machine::affinity(), std::vector<int>{all.front()});
    EXPECT_EQ(machine::usable_cpus(), 1);
  }).join();
}

TEST(Machine, CoresHoldEveryUsableCpuOnce) {
  std::vector<int> cpus;
  for (const machine::Core& core : machine::cores()) {
    EXPECT_GE(core.numa_node, 0);
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  std::sort(cpus.begin(), cpus.end());
  EXPECT_EQ(cpus, machine::affinity());
}

TEST(Machine, MemoryFiguresAreOfOneWorld) {
  EXPECT_GT(machine::memory_total_bytes(), std::uint64_t{64} << 20);
  EXPECT_LE(machine::memory_available_bytes(), machine::memory_total_bytes());
  EXPECT_GT(machine::memory_available_bytes(), 0U);
  EXPECT_GT(machine::memlock_limit_bytes(), 0U);
  EXPECT_GE(machine::peak_rss_bytes(), machine::rss_bytes() / 2);
}

TEST(Machine, CachesAreSmallerThanMemory) {
  EXPECT_LT(machine::cache_bytes(), machine::memory_total_bytes());
}

TEST(Machine, ResidentMemoryGrowsByWhatIsTouched) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const std::uint64_t before = machine::rss_bytes();
  std::vector<char> touched(kBytes, 1);
  EXPECT_GE(machine::rss_bytes() + (std::uint64_t{4} << 20), before + kBytes);
  EXPECT_EQ(std::accumulate(touched.begin(), touched.begin() + 10, 0), 10);
}

TEST(GpuProbe, DoesNotNeedADriver) {
  for (const GpuInfo& gpu : gpus()) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.memory_bytes, 0U);
    EXPECT_LE(gpu.free_bytes, gpu.memory_bytes);
    EXPECT_GE(gpu.compute_major, 3);
    EXPECT_TRUE(built_with_cuda());
  }
}

}  // namespace
}  // namespace tandem
