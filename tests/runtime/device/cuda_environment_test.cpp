#include "runtime/device/cuda_environment.hpp"

#include <cstdlib>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/process/variable.hpp"

namespace tandem {
namespace {

std::optional<std::string> value_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

TEST(CudaEnvironment, HasQueuesForAllStreamsAndLoadsKernelsAheadWhereThereArePeers) {
  const test::Variable queues("CUDA_DEVICE_MAX_CONNECTIONS", std::nullopt);
  const test::Variable loading("CUDA_MODULE_LOADING", std::nullopt);
  const test::Variable world("WORLD_SIZE", "1");
  const test::Variable slurm("SLURM_NTASKS", std::nullopt);
  const test::Variable mpi("OMPI_COMM_WORLD_SIZE", std::nullopt);
  prepare_cuda_environment();
  EXPECT_EQ(value_of("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_EQ(value_of("CUDA_MODULE_LOADING"), std::nullopt) << "a rank alone starts sooner without";
  world.set("8");
  prepare_cuda_environment();
  EXPECT_EQ(value_of("CUDA_MODULE_LOADING"), "EAGER");
  world.set(std::nullopt);
  loading.set(std::nullopt);
  slurm.set("2");
  prepare_cuda_environment();
  EXPECT_EQ(value_of("CUDA_MODULE_LOADING"), "EAGER");
}

TEST(CudaEnvironment, KeepsWhatTheUserHasSet) {
  const test::Variable queues("CUDA_DEVICE_MAX_CONNECTIONS", "4");
  const test::Variable loading("CUDA_MODULE_LOADING", "LAZY");
  const test::Variable world("WORLD_SIZE", "8");
  prepare_cuda_environment();
  EXPECT_EQ(value_of("CUDA_DEVICE_MAX_CONNECTIONS"), "4");
  EXPECT_EQ(value_of("CUDA_MODULE_LOADING"), "LAZY");
}

}  // namespace
}  // namespace tandem
