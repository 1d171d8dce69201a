// A GPU's speeds: measured as the run will use it, on the fake of CUDA's calls, whose times are
// known; and kept in the file.
#include "engine/tensors/gpu_bandwidths.hpp"

#include <chrono>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/fakes/fake_gpu.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;

constexpr GpuProbe kSmall = {.copied_bytes = 1 << 20, .updated_bytes = 1 << 20, .matmul_side = 64};
const UpdateKernel kKernel = {.weight = DType::kBF16, .gradient = DType::kBF16};

TEST(GpuBandwidths, AreWhatItsTimesSay) {
  FakeCuda cuda(Clock::real());
  cuda.copy_cost = 20ms;
  const SimSpec spec = measure_gpu(*test::fake_gpus(10ms)(0), kKernel, kSmall);
  // Never less than the fake takes; more, as far as the host notices the end late.
  constexpr double kMiB = 1 << 20;
  EXPECT_LE(spec.to_device_bytes_per_s, kMiB / 20e-3);
  EXPECT_GE(spec.to_device_bytes_per_s, kMiB / 200e-3);
  EXPECT_LE(spec.to_host_bytes_per_s, kMiB / 20e-3);
  EXPECT_LE(spec.compute_flops_per_s, 2.0 * 64 * 64 * 64 / 10e-3);
  EXPECT_GE(spec.compute_flops_per_s, 2.0 * 64 * 64 * 64 / 200e-3);
  EXPECT_LE(spec.memory_bytes_per_s, kMiB / 20e-6);
  EXPECT_GT(spec.memory_bytes_per_s, 0);
  EXPECT_EQ(spec.memory_bytes, static_cast<double>(cuda.memory_bytes));
  EXPECT_EQ(cuda.used_bytes(), 0U);
  EXPECT_EQ(cuda.pinned_pieces(), 0U);
  EXPECT_EQ(cuda.live_events(), 0);
}

TEST(GpuBandwidths, AreMeasuredOnce) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gpu-bandwidths-" + std::to_string(::getpid()));
  const BandwidthCache cache((folder / "bandwidths.tsv").string());
  FakeCuda cuda(Clock::real());
  const SimSpec first = gpu_spec(*test::fake_gpus(1us)(0), kKernel, cache, kSmall);
  cuda.copy_cost = 1s;
  const SimSpec second = gpu_spec(*test::fake_gpus(1s)(0), kKernel, cache, kSmall);
  EXPECT_EQ(first.to_device_bytes_per_s, second.to_device_bytes_per_s);
  EXPECT_EQ(first.to_host_bytes_per_s, second.to_host_bytes_per_s);
  EXPECT_EQ(first.memory_bytes_per_s, second.memory_bytes_per_s);
  EXPECT_EQ(first.compute_flops_per_s, second.compute_flops_per_s);
  // Ranks tell each other in this notation.
  EXPECT_EQ(parse_sim_spec(to_string(first)).compute_flops_per_s, first.compute_flops_per_s);
  EXPECT_EQ(parse_sim_spec(to_string(first)).memory_bytes, first.memory_bytes);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem
